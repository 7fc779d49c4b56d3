"""The user's prompts and reward function."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetrl.errors import Problem, RunError, SpecError
from hetrl.runtime.sequences import Prompt
from hetrl.units import format_bytes

MAX_PROMPTS_BYTES = 256 * 1024**2

PromptRecord = Mapping[str, Any]
RewardFunction = Callable[[PromptRecord, str], float]


def load_prompts(path: Path) -> tuple[PromptRecord, ...]:
    """Read a JSON-lines file; each line an object with the text under ``prompt``, and whatever the reward needs.

    Raises
    ------
    SpecError
        Naming every bad line.
    """
    where = "run.prompts"
    try:
        if path.stat().st_size > MAX_PROMPTS_BYTES:
            raise SpecError(
                Problem(path=where, message="file too large", valid=f"at most {format_bytes(MAX_PROMPTS_BYTES)}")
            )
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(Problem(path=where, message=f"cannot be read: {error}")) from error
    records: list[PromptRecord] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            problems.append(Problem(path=f"{path}:{number}", message=f"not JSON: {error}"))
            continue
        if not isinstance(record, dict) or not isinstance(record.get("prompt"), str) or not record["prompt"]:
            problems.append(
                Problem(path=f"{path}:{number}", message="not a prompt", valid='an object such as {"prompt": "..."}')
            )
            continue
        records.append(record)
    if not records and not problems:
        problems.append(Problem(path=where, message="no prompts", found=str(path)))
    if problems:
        raise SpecError(problems)
    return tuple(records)


def prompts_of_step(records: Sequence[PromptRecord], num_prompts: int, step: int, seed: int) -> list[Prompt]:
    """Return the prompts of a step: consecutive parts of a fresh shuffle per pass, decided by ``seed`` and ``step``."""
    steps_per_pass = len(records) // num_prompts
    number, position = divmod(step, steps_per_pass)
    order = np.random.default_rng((seed, number)).permutation(len(records))
    chosen = order[position * num_prompts : (position + 1) * num_prompts]
    return [Prompt(index=int(index), text=records[index]["prompt"]) for index in chosen]


def load_reward(name: str) -> RewardFunction:
    """Import ``package.module:function`` or ``path/to/file.py:function``.

    This runs the user's code; call it only with a name the user gave on the command line or in the configuration.

    Raises
    ------
    SpecError
        If there is no such function.
    """
    where = "run.reward"
    valid = "package.module:function or path/to/file.py:function"
    module_name, separator, function_name = name.rpartition(":")
    if not separator or not module_name or not function_name.isidentifier():
        raise SpecError(Problem(path=where, message="not a reward function", found=name, valid=valid))
    try:
        if module_name.endswith(".py"):
            specification = importlib.util.spec_from_file_location("hetrl_user_reward", module_name)
            assert specification is not None and specification.loader is not None
            module = importlib.util.module_from_spec(specification)
            specification.loader.exec_module(module)
        else:
            module = importlib.import_module(module_name)
    except (ImportError, OSError, SyntaxError) as error:
        raise SpecError(Problem(path=where, message=f"cannot be imported: {error}", found=name, valid=valid)) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise SpecError(Problem(path=where, message=f"{module_name} has no function {function_name}", found=name))
    return function  # type: ignore[no-any-return]


def reward_of(function: RewardFunction, record: PromptRecord, response: str) -> float:
    """Call the user's function.

    Raises
    ------
    RunError
        If it fails or returns anything but a finite number.
    """
    try:
        reward = float(function(record, response))
    except Exception as error:
        raise RunError(f"the reward function failed: {type(error).__name__}: {error}") from error
    if not math.isfinite(reward):
        raise RunError(f"the reward function returned {reward}")
    return reward
