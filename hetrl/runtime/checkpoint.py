"""Checkpoints: folders that exist whole or not at all, in formats that run no code when read.

A checkpoint ``step-000010`` holds the model as Hugging Face saves it (safetensors, config, tokenizer), the moments
of AdamW as safetensors, and ``state.json``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from hetrl.errors import Problem, SpecError

STATE_FILE = "state.json"
_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands: steps done, and the seed that decides the prompts and samples to come."""

    num_steps_done: int
    seed: int


@contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """Give a folder to fill; it appears as ``final`` only if the body ends without an exception."""
    unfinished = final.with_name(f".{final.name}.unfinished-{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        os.replace(unfinished, final)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def checkpoint_folder(out: Path, num_steps_done: int) -> Path:
    """Where the checkpoint after that many steps lies."""
    return out / "checkpoints" / f"step-{num_steps_done:06d}"


def latest_checkpoint(out: Path) -> Path | None:
    """Return the checkpoint with the most steps, or None."""
    found = [each for each in (out / "checkpoints").glob("step-*") if _NAME.fullmatch(each.name)]
    return max(found, key=lambda each: int(each.name.removeprefix("step-")), default=None)


def write_state(folder: Path, state: RunState) -> None:
    """Write ``state.json`` into a checkpoint."""
    (folder / STATE_FILE).write_text(json.dumps(asdict(state)) + "\n", encoding="utf-8")


def read_state(folder: Path) -> RunState:
    """Read ``state.json``.

    Raises
    ------
    SpecError
        If it is missing or not what :func:`write_state` writes.
    """
    path = folder / STATE_FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return RunState(num_steps_done=int(data["num_steps_done"]), seed=int(data["seed"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(Problem(path=str(path), message=f"not a checkpoint's state: {error}")) from error
