"""Carries out points in blocks, checks them and stores them: what is stored is not measured again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hetrl.measure import Measurement, MeasurementStore, load_measurements
from hetrl_profiler.device import ProfiledDevice
from hetrl_profiler.points import Point
from hetrl_profiler.progress import Progress
from hetrl_profiler.timing import Budgeted, Sample, slowdown, summarize, take_samples

BLOCK_SECONDS = 3.0
"""A block's samples share one factor from busy to wall time."""
PROFILE = "profile"


class Recorder:
    """Measurements of one device, appended block by block.

    Parameters
    ----------
    path
        Where to append; what is there for this device counts as done.
    device
        What is profiled.
    progress
        Told of every point.
    """

    def __init__(self, path: Path, device: ProfiledDevice, progress: Progress, labels: Mapping[str, str]) -> None:
        self.device = device
        self.progress = progress
        self.store = MeasurementStore(
            path,
            labels={"source": PROFILE, "dtype": device.dtype, "device_kind": device.kind, **labels},
            accelerator=device.facts,
        )
        found = load_measurements(path) if path.exists() else ()
        self.stored = [
            each for each in found if each.device_type == device.name and each.labels.get("source") == PROFILE
        ]
        self._done = {each.labels.get("point", "") for each in self.stored}
        self.impossible: list[str] = []

    def measured(self, kind: str) -> list[Measurement]:
        """Return stored measurements of a kind and this device's dtype."""
        return [each for each in self.stored if each.kind == kind and each.labels.get("dtype") == self.device.dtype]

    def is_done(self, point: Point) -> bool:
        """Whether the point was stored before."""
        return self._name(point) in self._done

    def run(
        self,
        points: Sequence[Point],
        *,
        point_seconds: float,
        total_seconds: float = float("inf"),
        single_kernels: bool = False,
    ) -> None:
        """Measure points in their order; when `total_seconds` of busy time are used, the rest is left out."""
        clock = self.device.clock(single_kernels=single_kernels)
        total = Budgeted(self.device.clock(), total_seconds)
        waiting = [point for point in points if not self.is_done(point)]
        self.progress.expect(len(waiting))
        block: list[tuple[Point, list[Sample], Mapping[str, float]]] = []
        block_began = time.perf_counter()
        try:
            for number, point in enumerate(waiting):
                if total.is_used():
                    self.progress.skip(len(waiting) - number)
                    break
                call = point.prepare()
                samples = take_samples(call, clock, budget_seconds=point_seconds)
                block.append((point, samples, dict(point.results())))
                self.progress.done(point.kind)
                if time.perf_counter() - block_began > BLOCK_SECONDS:
                    whole, block, block_began = block, [], time.perf_counter()
                    self._store(whole)
        finally:  # an error or Ctrl-C costs the point that is being measured, and no other
            self._store(block)

    def _store(self, block: Sequence[tuple[Point, list[Sample], Mapping[str, float]]]) -> None:
        if not block:
            return
        factor = slowdown([sample for _, samples, _ in block for sample in samples])
        found = []
        for point, samples, results in block:
            timing = summarize(samples, factor)
            if timing.busy_seconds < point.least_seconds:
                self.impossible.append(
                    f"{point.name}: {timing.busy_seconds:.3g} s, at least {point.least_seconds:.3g} s"
                )
                continue
            found.append(
                self.store.build(
                    point.kind,
                    self.device.name,
                    amounts={**point.amounts, **results},
                    measured={**timing.to_measured(), "slowdown": factor},
                    labels={"point": self._name(point), **point.labels},
                )
            )
        self.store.append(found)
        self.stored += found
        self._done |= {each.labels["point"] for each in found}

    def _name(self, point: Point) -> str:
        return f"{self.device.dtype}:{point.name}:{point.labels.get('model', '')}"
