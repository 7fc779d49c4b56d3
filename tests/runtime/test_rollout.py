"""A rollout worker alone: more tokens of prompts than an engine takes in one iteration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hetrl.runtime.worker import ENVIRONMENT
from tests.helpers.demo import launch_environment

pytestmark = pytest.mark.runtime

SCRIPT = """
import sys

if __name__ == "__main__":
    from hetrl.runtime.rollout import BATCHED_TOKENS, RolloutWorker
    from hetrl.runtime.sequences import Prompt

    worker = RolloutWorker(
        0, model_path=sys.argv[1], dtype="float32", max_model_tokens=160, max_num_sequences=128,
        kv_cache_bytes=64 * 2**20,
    )
    text = "copy: 0123456789 " * 8
    prompts = [Prompt(index=index, text=str(index) + text) for index in range(48)]
    num_tokens = sum(worker.count_tokens([each.text for each in prompts]))
    assert num_tokens > BATCHED_TOKENS, num_tokens
    sampled = worker.generate(prompts, num_responses=2, max_response_tokens=4, temperature=1.0, seed=1)
    print(len(sampled), len({each.prompt_index for each in sampled}))
"""


def test_prompts_longer_than_one_iteration_are_sampled(model_folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(model_folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**launch_environment(), **ENVIRONMENT},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "96 48"
