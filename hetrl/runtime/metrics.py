"""Metrics of a run: JSON lines for programs, TensorBoard for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from hetrl.files import write_text_atomically
from hetrl.runtime.step import StepRecord

METRICS_FILE = "metrics.jsonl"


class MetricsWriter:
    """Writes one record per step under a run's folder.

    Parameters
    ----------
    out
        Folder of the run.
    num_steps_done
        Steps already done when a run goes on; what was written beyond them is dropped.
    """

    def __init__(self, out: Path, num_steps_done: int = 0) -> None:
        from tensorboard.summary import Writer

        self._path = out / METRICS_FILE
        out.mkdir(parents=True, exist_ok=True)
        kept = [line for line in self._lines() if json.loads(line)["step"] < num_steps_done]
        write_text_atomically(self._path, "".join(line + "\n" for line in kept))
        self._tensorboard = Writer(str(out / "tensorboard"))

    def _lines(self) -> list[str]:
        return self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []

    def write(self, record: StepRecord) -> None:
        """Add a step."""
        values = scalars(record)
        line = {"step": record.step, **values, "shares": {task: list(each) for task, each in record.shares.items()}}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        for name, value in values.items():
            self._tensorboard.add_scalar(name, value, record.step)
        self._tensorboard.flush()

    def close(self) -> None:
        """Finish the TensorBoard file."""
        self._tensorboard.close()


def scalars(record: StepRecord) -> Mapping[str, float]:
    """Return the numbers of a step by name."""
    return {
        "reward_mean": record.reward_mean,
        "reward_std": record.reward_std,
        "kl": record.kl,
        "loss": record.loss,
        "gradient_norm": record.gradient_norm,
        "clip_fraction": record.clip_fraction,
        "max_log_prob_difference": record.max_log_prob_difference,
        "max_reference_difference": record.max_reference_difference,
        "num_prompt_tokens": record.num_prompt_tokens,
        "num_response_tokens": record.num_response_tokens,
        "tokens_per_second": record.tokens_per_second,
        "step_seconds": record.seconds,
        **{f"{phase}_seconds": seconds for phase, seconds in record.phase_seconds.items()},
    }
