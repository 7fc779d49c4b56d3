"""Timing on a machine that does other things too: medians, outliers locked out, slow-downs from outside seen.

A device may be held to a part of its speed from outside (a CPU quota, stop and continue signals) or share its cores
with others. A single sample then shows either nothing of it or too much. So on a CPU every sample is the CPU time the
operation took, which such interruptions leave alone, and a block of samples gives the factor from CPU time to wall
time: the median over windows that are long against the interruptions. ``seconds = median CPU seconds x factor``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

WINDOW_SECONDS = 0.4
"""Windows of the wall-time factor: several periods of a CPU quota (20 to 100 ms as a rule)."""
OUTLIER_DEVIATIONS = 5.0
"""Samples this many median absolute deviations above the median are locked out."""
STABLE = 0.015
"""Enough samples: interquartile range over the square root of their number is below this share of the median."""
MIN_SAMPLES = 3
MAX_SAMPLES = 25
MIN_SAMPLE_SECONDS = 2e-3
"""Shorter calls are repeated within a sample until the clock's own cost does not show."""

PATIENCE = 2.0
"""Wall seconds that may pass per busy second of a budget."""

Operation = Callable[[int], object]
"""Something to time; it gets the number of the call, so that it can turn to fresh operands (cold caches)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How busy and wall seconds are read, and a sample is taken.

    Parameters
    ----------
    synchronize
        Waits for an accelerator to finish; its busy time is then the wall time. None on a CPU.
    """

    synchronize: Callable[[], object] | None = None

    def read(self) -> tuple[float, float]:
        """Busy and wall seconds since some fixed moments."""
        if self.synchronize is None:
            return time.process_time(), time.perf_counter()
        self.synchronize()
        now = time.perf_counter()
        return now, now

    def sample(self, operation: Operation, first: int, num_calls: int) -> Sample:
        """Time so many calls in a row, numbered from ``first``."""
        busy, wall = self.read()
        for number in range(first, first + num_calls):
            operation(number)
        busy_after, wall_after = self.read()
        return Sample(busy_after - busy, wall_after - wall, num_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventClock(Clock):
    """Clock for single kernels of an accelerator: its own events around each call, the second-level cache overwritten.

    Overwriting the cache also keeps the device busy while the host hands over the call, so that launching it does not
    count; what launches cost shows in the phases of a model.

    Parameters
    ----------
    event
        Makes an event with ``record``, and ``elapsed_time`` in milliseconds.
    overwrite
        Writes more than the cache holds.
    """

    event: Callable[[], Any]
    overwrite: Callable[[], object]

    def sample(self, operation: Operation, first: int, num_calls: int) -> Sample:
        """Time so many calls, each after the cache was overwritten."""
        assert self.synchronize is not None
        pairs = []
        for number in range(first, first + num_calls):
            self.overwrite()
            start, end = self.event(), self.event()
            start.record()
            operation(number)
            end.record()
            pairs.append((start, end))
        self.synchronize()
        seconds = 1e-3 * sum(start.elapsed_time(end) for start, end in pairs)
        return Sample(seconds, seconds, num_calls)


class Budgeted:
    """A budget of busy seconds that starts now; it also ends after `PATIENCE` times as many wall seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._busy, self._wall = clock.read()

    def is_used(self) -> bool:
        """Whether the time is over."""
        busy, wall = self._clock.read()
        return busy - self._busy > self._seconds or wall - self._wall > PATIENCE * self._seconds


@dataclass(frozen=True, slots=True)
class Sample:
    """Busy and wall seconds of several equal calls in a row."""

    busy_seconds: float
    wall_seconds: float
    num_calls: int

    @property
    def busy_seconds_per_call(self) -> float:
        """Busy seconds of one call."""
        return self.busy_seconds / self.num_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What the samples of one operation say.

    Parameters
    ----------
    seconds
        Wall seconds of one call on this device as it is slowed: median busy seconds times the block's factor.
    busy_seconds
        Median CPU seconds of one call; on accelerators the wall seconds.
    spread
        Interquartile range over median of the samples that were kept.
    num_samples, num_outliers
        Kept and locked-out samples.
    """

    seconds: float
    busy_seconds: float
    spread: float
    num_samples: int
    num_outliers: int

    def to_measured(self) -> dict[str, float]:
        """As a measurement's ``measured`` part."""
        return {
            "seconds": self.seconds,
            "busy_seconds": self.busy_seconds,
            "spread": self.spread,
            "num_samples": self.num_samples,
            "num_outliers": self.num_outliers,
        }


def take_samples(operation: Operation, clock: Clock, *, budget_seconds: float) -> list[Sample]:
    """Warm up with one call, then sample until the median is stable or the budget of busy seconds is used.

    At least `MIN_SAMPLES` samples are taken, but one is enough where it exceeds the budget alone.
    """
    budget = Budgeted(clock, budget_seconds)
    operation(0)
    done, per_sample = 1, 1
    samples: list[Sample] = []
    while len(samples) < MAX_SAMPLES:
        sample = clock.sample(operation, done, per_sample)
        done += per_sample
        spent = sample.busy_seconds
        if spent < MIN_SAMPLE_SECONDS / 2 and not samples:
            per_sample = min(20 * per_sample, round(per_sample * MIN_SAMPLE_SECONDS / max(spent, 1e-7)) + 1)
            continue
        samples.append(sample)
        if budget.is_used() and (len(samples) >= MIN_SAMPLES or spent > budget_seconds):
            break
        if len(samples) > MIN_SAMPLES and _is_stable(samples):
            break
    return samples


def _is_stable(samples: Sequence[Sample]) -> bool:
    low, middle, high = np.quantile([each.busy_seconds_per_call for each in samples], [0.25, 0.5, 0.75])
    return bool((high - low) / np.sqrt(len(samples)) <= STABLE * middle)


def slowdown(samples: Sequence[Sample]) -> float:
    """Wall seconds per busy second: the median over windows of at least `WINDOW_SECONDS`, at least 1.

    Samples must be in the order in which they were taken.
    """
    ratios: list[float] = []
    busy = wall = 0.0
    for each in samples:
        busy += each.busy_seconds
        wall += each.wall_seconds
        if wall >= WINDOW_SECONDS:
            ratios.append(wall / busy)
            busy = wall = 0.0
    if not ratios:
        ratios.append(wall / busy)
    return max(1.0, float(np.median(ratios)))


def summarize(samples: Sequence[Sample], factor: float) -> Timing:
    """Median of one operation's samples; `factor` is the block's `slowdown`."""
    busy = np.array([each.busy_seconds_per_call for each in samples])
    kept = busy[~outliers(busy)]
    low, middle, high = np.quantile(kept, [0.25, 0.5, 0.75])
    return Timing(
        seconds=float(middle) * factor,
        busy_seconds=float(middle),
        spread=float((high - low) / middle),
        num_samples=len(kept),
        num_outliers=len(busy) - len(kept),
    )


def outliers(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which values lie far above the median: interruptions only ever add time."""
    middle = np.median(values)
    deviation = max(float(np.median(np.abs(values - middle))), 0.01 * float(middle))
    return np.asarray(values > middle + OUTLIER_DEVIATIONS * deviation)
