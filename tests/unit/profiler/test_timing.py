"""Timing of samples: what a slow-down from outside does to CPU and wall seconds, on made-up samples."""

from __future__ import annotations

import numpy as np
import pytest

from hetrl_profiler.timing import Clock, EventClock, Sample, outliers, slowdown, summarize, take_samples


def test_a_duty_cycle_of_half_doubles_the_seconds() -> None:
    """Calls of 5 ms on a device that is stopped every other 20 ms: bursts of free calls, then one that waits."""
    samples = [Sample(5e-3, 5e-3 + (20e-3 if number % 4 == 0 else 0.0), 1) for number in range(400)]
    factor = slowdown(samples)
    assert factor == pytest.approx(2.0, rel=0.02)
    assert summarize(samples, factor).seconds == pytest.approx(10e-3, rel=0.02)


def test_an_undisturbed_device_has_factor_one() -> None:
    assert slowdown([Sample(1e-3, 1e-3, 1)] * 5) == 1.0


def test_an_interruption_in_one_window_is_ignored() -> None:
    samples = [Sample(0.1, 0.1, 1)] * 40 + [Sample(0.1, 5.0, 1)]
    assert slowdown(samples) == pytest.approx(1.0)


def test_outliers_are_far_above_the_median_only() -> None:
    values = np.array([1.0, 1.01, 0.99, 1.02, 3.0, 0.5])
    assert outliers(values).tolist() == [False, False, False, False, True, False]
    timing = summarize([Sample(each, each, 1) for each in values], 1.0)
    assert (timing.num_samples, timing.num_outliers) == (5, 1)
    assert timing.seconds == pytest.approx(1.0)


def test_an_accelerators_events_count_and_its_cache_is_overwritten_before_every_call() -> None:
    """A device that takes 2 ms per call and 50 ms per overwriting; the host's clock plays no part."""
    done: list[str] = []
    clock_ms = [0.0]

    class Event:
        def record(self) -> None:
            self.at = clock_ms[0]

        def elapsed_time(self, end: Event) -> float:
            return end.at - self.at

    def spend(what: str, milliseconds: float) -> None:
        done.append(what)
        clock_ms[0] += milliseconds

    clock = EventClock(synchronize=lambda: None, event=Event, overwrite=lambda: spend("overwrite", 50.0))
    sample = clock.sample(lambda number: spend(f"call {number}", 2.0), 5, 3)
    assert done == ["overwrite", "call 5", "overwrite", "call 6", "overwrite", "call 7"]
    assert sample.busy_seconds_per_call == pytest.approx(2e-3) and sample.wall_seconds == sample.busy_seconds


def test_short_calls_are_repeated_within_a_sample() -> None:
    calls: list[int] = []
    samples = take_samples(calls.append, Clock(), budget_seconds=0.01)
    assert min(each.num_calls for each in samples) > 100
    assert calls == list(range(len(calls)))  # every call gets its own number
