"""What all workers share: their place on a core, the timing of phases, and how they end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hetrl.measure.worker_environment import WORKER_ENVIRONMENT
from hetrl.runtime.sequences import PhaseTiming

ENVIRONMENT = {**WORKER_ENVIRONMENT, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Of the Ray actors."""


class Worker:
    """Base of the Ray actors.

    Parameters
    ----------
    core_index
        Position of the worker's device among the CPU devices of this host: a CPU device is one core, and every
        worker of the device runs on that core.
    """

    def __init__(self, core_index: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.core = cores[core_index % len(cores)]
        os.sched_setaffinity(0, {self.core})
        self._timings: list[PhaseTiming] = []

    def describe(self) -> dict[str, int]:
        """Return the process id and core; answers once the worker is ready."""
        return {"pid": os.getpid(), "core": self.core}

    @contextmanager
    def phase(self, name: str) -> Iterator[dict[str, float]]:
        """Time a phase; the body may add amounts of work to the dictionary it gets."""
        amounts: dict[str, float] = {}
        _reset_peak_memory()
        start = time.perf_counter()
        yield amounts
        seconds = time.perf_counter() - start
        self.add_timing(name, seconds, amounts)

    def add_timing(self, name: str, seconds: float, amounts: Mapping[str, float]) -> None:
        """Record a phase that was timed by hand."""
        self._timings.append(PhaseTiming(phase=name, seconds=seconds, peak_bytes=peak_memory_bytes(), amounts=amounts))

    def take_timings(self) -> list[PhaseTiming]:
        """Return the phases since the last call."""
        timings, self._timings = self._timings, []
        return timings


def _reset_peak_memory() -> None:
    """Set the peak resident size of this process back to its present size (proc(5), clear_refs 5)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes() -> int:
    """Peak resident memory of this process since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")
