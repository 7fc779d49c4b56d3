"""Which groups on which vectors can be part of a better plan: Lagrangian bounds, refined where they matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hetrl.search.exact.columns import TaskBounds
from hetrl.search.exact.problem import ExactProblem
from hetrl.search.exact.relaxation import Prices, first_prices, lagrangian_bound

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Partition = tuple[tuple[int, ...], ...]
FIRST_ROUNDS, LATER_ROUNDS = 80, 30
SMALLEST_BATCH = 48
"""Vectors whose bounds are refined at once, at least; more where many are left."""
SAFETY = 1e-10
"""Relative margin of every comparison with the incumbent, for rounding."""


@dataclass
class Survivors:
    """What is left of one partition.

    Parameters
    ----------
    bound
        Of every plan with this partition.
    vectors
        Per group the vectors that are left; empty lists where none is.
    values
        Per group what they cost at the prices.
    """

    partition: Partition
    bound: float
    prices: Prices
    vectors: list[Ints] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)

    def tighten(self, limit: float) -> bool:
        """Drop vectors that cannot win against a better incumbent; False if none are left."""
        if self.bound >= limit:
            return False
        keep = [each - each.min() + self.bound < limit for each in self.values]
        self.vectors = [each[mine] for each, mine in zip(self.vectors, keep, strict=True)]
        self.values = [each[mine] for each, mine in zip(self.values, keep, strict=True)]
        return True

    def cheapest(self, number: int) -> Survivors:
        """Keep the cheapest vectors of every group only."""
        order = [np.argsort(each, kind="stable")[:number] for each in self.values]
        return Survivors(
            self.partition,
            self.bound,
            self.prices,
            [each[mine] for each, mine in zip(self.vectors, order, strict=True)],
            [each[mine] for each, mine in zip(self.values, order, strict=True)],
        )


@dataclass
class NeededGroups:
    """Groups on vectors whose columns are to be worked out, with the widest limits any partition asks for."""

    limits: dict[int, dict[tuple[int, ...], Floats]] = field(default_factory=dict)
    cutoffs: dict[int, dict[tuple[int, ...], dict[int, float]]] = field(default_factory=dict)

    def add(self, vector: int, tasks: tuple[int, ...], limits: Floats, cutoffs: dict[int, float]) -> None:
        """Widen the limits of a group on a vector."""
        here = self.limits.setdefault(vector, {})
        here[tasks] = np.maximum(here[tasks], limits) if tasks in here else limits
        mine = self.cutoffs.setdefault(vector, {}).setdefault(tasks, {})
        for task, cutoff in cutoffs.items():
            mine[task] = max(mine.get(task, 0.0), cutoff)

    @property
    def number(self) -> int:
        """Groups on vectors."""
        return sum(len(each) for each in self.limits.values())


def screen_partition(
    problem: ExactProblem,
    bounds: TaskBounds,
    partition: Partition,
    cutoff: float,
    stop: Callable[[], bool],
) -> Survivors:
    """Bound a partition; refine the tasks' bounds until all that is left rests on fastest options."""
    space, relaxed = problem.space, problem.relaxed
    room = problem.room
    prices = first_prices(relaxed, len(room))
    everything = np.flatnonzero((problem.held(space.vectors.astype(np.float64)) <= room).all(axis=1))
    vectors = [everything for _ in partition]
    rounds = FIRST_ROUNDS
    limit = cutoff * (1 - SAFETY)
    while True:
        rows = [bounds.rows(tasks, left) for tasks, left in zip(partition, vectors, strict=True)]
        finite = [np.isfinite(each).all(axis=1) for each in rows]
        rows = [each[keep] for each, keep in zip(rows, finite, strict=True)]
        vectors = [each[keep] for each, keep in zip(vectors, finite, strict=True)]
        if not all(len(each) for each in vectors):
            return Survivors(partition, np.inf, prices)
        devices = [problem.held(space.vectors[each].astype(np.float64)) for each in vectors]
        bound, prices, values = lagrangian_bound(relaxed, rows, devices, room, limit, prices, rounds)
        if bound >= limit:
            return Survivors(partition, bound, prices)
        least = [float(each.min()) for each in values]
        keep = [each - low + bound < limit for each, low in zip(values, least, strict=True)]
        vectors = [each[mine] for each, mine in zip(vectors, keep, strict=True)]
        values = [each[mine] for each, mine in zip(values, keep, strict=True)]
        if stop() or not _refine(problem, bounds, partition, vectors, values):
            return Survivors(partition, bound, prices, vectors, values)
        rounds = LATER_ROUNDS


def _refine(
    problem: ExactProblem, bounds: TaskBounds, partition: Partition, vectors: list[Ints], values: list[Floats]
) -> bool:
    """Work out the fastest options where the loosest bounds still matter; False if there is nothing left to do.

    The fluid bound of an engine is looser than that of training, and that of scoring is almost exact.
    """
    kinds = [task.kind for task in problem.job.workflow.tasks]
    for kind in ("generate", "train", "score"):
        done = False
        for tasks, left, cost in zip(partition, vectors, values, strict=True):
            mine = [task for task in tasks if kinds[task] == kind]
            open_ = np.flatnonzero(~bounds.exact[mine][:, left].all(axis=0))
            number = max(SMALLEST_BATCH, len(open_) // 3)
            first = open_[np.argsort(cost[open_], kind="stable")[:number]]
            bounds.refine(mine, left[first])
            done = done or len(open_) > 0
        if done:
            return True
    return False


def need_columns(
    problem: ExactProblem, bounds: TaskBounds, survivors: Survivors, cutoff: float, needed: NeededGroups
) -> None:
    """Ask for the columns of what is left of a partition, with limits that keep every better plan."""
    relaxed = problem.relaxed
    wide = cutoff * (1 + 1e-9)
    rows = [bounds.rows(tasks, left) for tasks, left in zip(survivors.partition, survivors.vectors, strict=True)]
    least = [each.min(axis=0) for each in rows]
    lows = [float(each.min()) for each in survivors.values]
    phases = range(relaxed.num_phases)
    for g, (tasks, left) in enumerate(zip(survivors.partition, survivors.vectors, strict=True)):
        others = sum((each for h, each in enumerate(least) if h != g), np.zeros(relaxed.num_tasks))
        total = rows[g] + others
        of_phase = np.stack([total[:, relaxed.phase_of == phase].max(axis=1) for phase in phases], axis=1)
        limits = wide - (of_phase.sum(axis=1, keepdims=True) - of_phase)
        weight = {
            phase: float(sum(survivors.prices.rows[task] for task in tasks if relaxed.phase_of[task] == phase))
            for phase in phases
        }
        for position, vector in enumerate(left):
            spare = wide - survivors.bound - (survivors.values[g][position] - lows[g])
            cutoffs = {}
            for task in tasks:
                phase = int(relaxed.phase_of[task])
                seconds = bounds.seconds[task, vector]
                if task in bounds.shared and relaxed.trainers[task] in tasks:
                    seconds = bounds.shared[task][vector]
                by_phase = seconds + limits[position, phase] - rows[g][position, task]
                by_price = seconds + spare / weight[phase] if weight[phase] > 0 else np.inf
                cutoffs[task] = float(min(by_phase, by_price)) * (1 + 1e-9)
            needed.add(int(vector), tasks, limits[position], cutoffs)
