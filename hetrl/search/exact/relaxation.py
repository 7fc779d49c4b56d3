"""The relaxed step: one phase after the other, in each the busiest group decides; data moves between groups at once.

One row for every task: what its group does in the task's phase. A train task's row also holds the weight syncs into
other groups, which keep its own group busy. For a set of groups the step takes at least ``sum over phases of max over
rows``; this is the objective of the certificate's integer program, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetrl.search.exact.space import Space

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Relaxation:
    """Rows of the relaxed step.

    Parameters
    ----------
    phase_of
        ``[A]`` phase of every task.
    targets
        Train task -> tasks that get its weights after the step.
    trainers
        Score task -> train task of its role, with whose weights it may score.
    """

    num_tasks: int
    phase_of: NDArray[np.int32]
    num_phases: int
    targets: Mapping[int, tuple[int, ...]]
    trainers: Mapping[int, int]

    def rows(
        self, tasks: Sequence[int], seconds: Mapping[int, Floats], syncs: Mapping[int, Floats], size: int
    ) -> Floats:
        """Coefficients ``[size, A]`` of groups of these tasks, from their seconds and syncs, ``[size]`` each."""
        result = np.zeros((size, self.num_tasks))
        loads = np.zeros((size, self.num_phases))
        for task in tasks:
            loads[:, self.phase_of[task]] += seconds[task]
        for trainer, targets in self.targets.items():
            here = [syncs[target] for target in targets if target in tasks]
            if not here:
                continue
            loads[:, self.phase_of[trainer]] += sum(here)
            if trainer not in tasks:
                result[:, trainer] += sum(here)
        for task in tasks:
            result[:, task] += loads[:, self.phase_of[task]]
        return result

    def value(self, rows: Floats) -> float:
        """Relaxed seconds of a step, from the sum of its groups' rows."""
        return float(sum(rows[self.phase_of == phase].max() for phase in range(self.num_phases)))


def relaxation(space: Space) -> Relaxation:
    """Rows of a job; syncs count where the train task is in the last phase, as in all built-in workflows."""
    tasks = space.job.workflow.tasks
    phase_of = np.zeros(len(tasks), dtype=np.int32)
    for number, phase in enumerate(space.phases):
        phase_of[list(phase)] = number
    targets, trainers = {}, {}
    for index, source in enumerate(tasks):
        if source.kind != "train":
            continue
        others = tuple(i for i, each in enumerate(tasks) if each.role == source.role and each.kind != "train")
        if phase_of[index] == len(space.phases) - 1:
            targets[index] = others
        trainers.update({i: index for i in others if tasks[i].kind == "score"})
    return Relaxation(
        num_tasks=len(tasks),
        phase_of=phase_of,
        num_phases=len(space.phases),
        targets=targets,
        trainers=trainers,
    )


@dataclass
class Prices:
    """Multipliers of the Lagrangian bound: weights of the rows, adding up to one per phase, and seconds per device."""

    rows: Floats
    devices: Floats


def first_prices(relaxed: Relaxation, num_classes: int) -> Prices:
    """Equal weights, free devices."""
    members = np.bincount(relaxed.phase_of, minlength=relaxed.num_phases)
    return Prices(rows=1.0 / members[relaxed.phase_of], devices=np.zeros(num_classes))


def lagrangian_bound(
    relaxed: Relaxation,
    rows: Sequence[Floats],
    vectors: Sequence[Floats],
    capacity: Floats,
    cutoff: float,
    start: Prices,
    num_rounds: int,
) -> tuple[float, Prices, list[Floats]]:
    """Bound of all ways to take one item per group within the capacity, by subgradient steps.

    Parameters
    ----------
    rows, vectors
        Per group ``[items, A]`` and ``[items, classes]``.
    cutoff
        Bounds at least this high need no improvement.

    Returns
    -------
    bound, the prices that give it, and per group the priced cost of every item: their sum less the price of the
    capacity bounds every combination.
    """
    scale = cutoff if np.isfinite(cutoff) and cutoff > 0 else max(1.0, float(max(each.max() for each in rows)))
    weights, prices = start.rows.copy(), start.devices * capacity
    best, best_prices, step, since = -np.inf, start, 1.0, 0
    shares = [each / capacity for each in vectors]
    for _ in range(max(1, num_rounds)):
        values = [a @ weights + v @ prices for a, v in zip(rows, shares, strict=True)]
        chosen = [int(each.argmin()) for each in values]
        bound = float(sum(each[i] for each, i in zip(values, chosen, strict=True)) - prices.sum())
        if bound > best:
            since = 0 if bound > best + 1e-4 * scale else since + 1
            best, best_prices = bound, Prices(rows=weights.copy(), devices=prices / capacity)
        else:
            since += 1
        if best >= cutoff:
            break
        if since >= 6:
            step, since = step / 2, 0
            if step < 0.01:
                break
        slope_rows = sum(a[i] for a, i in zip(rows, chosen, strict=True)) / scale
        slope_devices = sum(v[i] for v, i in zip(shares, chosen, strict=True)) - 1.0
        for phase in range(relaxed.num_phases):
            mine = relaxed.phase_of == phase
            slope_rows[mine] -= slope_rows[mine].mean()
        slope_devices[(prices <= 0) & (slope_devices < 0)] = 0.0
        norm = float(slope_rows @ slope_rows + slope_devices @ slope_devices)
        if norm <= 1e-18:
            break
        length = step * (min(cutoff, best + 0.2 * scale) - bound) / norm
        weights = weights + length * slope_rows / scale
        prices = np.maximum(0.0, prices + length * slope_devices)
        for phase in range(relaxed.num_phases):
            mine = relaxed.phase_of == phase
            weights[mine] = _onto_simplex(weights[mine])
    values = [a @ best_prices.rows + v @ best_prices.devices for a, v in zip(rows, vectors, strict=True)]
    bound = float(sum(each.min() for each in values) - best_prices.devices @ capacity)
    return bound, best_prices, values


def _onto_simplex(values: Floats) -> Floats:
    ordered = np.sort(values)[::-1]
    sums = np.cumsum(ordered) - 1.0
    last = int(np.nonzero(ordered - sums / np.arange(1, len(values) + 1) > 0)[0][-1])
    return np.asarray(np.maximum(values - sums[last] / (last + 1), 0.0))
