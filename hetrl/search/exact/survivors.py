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
MOST_COMPARED = 2_000_000
"""Figures that are held at once where vectors are compared with vectors."""
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
    """Groups on vectors whose columns are to be worked out, with what the partitions leave them.

    Parameters
    ----------
    limits
        Vector -> group -> rows of limits, as `hetrl_kernels.exact_groups.GroupColumns` takes them.
    cutoffs
        Vector -> group -> the most seconds that each task may take.
    """

    limits: dict[int, dict[tuple[int, ...], list[Floats]]] = field(default_factory=dict)
    cutoffs: dict[int, dict[tuple[int, ...], dict[int, float]]] = field(default_factory=dict)

    def add(self, vector: int, tasks: tuple[int, ...], limits: Floats, cutoffs: dict[int, float]) -> None:
        """Ask for a group on a vector within one more row of limits."""
        self.limits.setdefault(vector, {}).setdefault(tasks, []).append(limits)
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
        if stop() or not _refine(problem, bounds, partition, vectors, values, stop):
            return Survivors(partition, bound, prices, vectors, values)
        rounds = LATER_ROUNDS


def _refine(
    problem: ExactProblem,
    bounds: TaskBounds,
    partition: Partition,
    vectors: list[Ints],
    values: list[Floats],
    stop: Callable[[], bool],
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
            bounds.refine(mine, left[first], stop)
            done = done or len(open_) > 0
        if done:
            return True
    return False


def need_columns(
    problem: ExactProblem, bounds: TaskBounds, survivors: Survivors, cutoff: float, needed: NeededGroups
) -> None:
    """Ask for the columns of what is left of a partition, with limits that keep every better plan.

    Next to a group on a vector the others have what is left of the devices: their least seconds, and their least priced
    cost, are those of their vectors that fit there.
    """
    relaxed, prices = problem.relaxed, survivors.prices
    wide = cutoff * (1 + 1e-9)
    groups = list(zip(survivors.partition, survivors.vectors, survivors.values, strict=True))
    held = [problem.held(problem.space.vectors[left].astype(np.float64)) for _, left, _ in groups]
    rows = [bounds.rows(tasks, left) for tasks, left, _ in groups]
    offset = float(prices.devices @ problem.room)
    for g, (tasks, left, _) in enumerate(groups):
        others, priced = np.zeros((len(left), relaxed.num_tasks)), held[g] @ prices.devices - offset
        for h, (_, _, values) in enumerate(groups):
            if h != g:
                least = least_beside(problem.room - held[g], held[h], np.column_stack([rows[h], values]))
                others, priced = others + least[:, :-1], priced + least[:, -1]
        apart, beside, loads = _by_phase(problem, tasks, rows[g], others)
        weights = np.bincount(relaxed.phase_of[list(tasks)], prices.rows[list(tasks)], relaxed.num_phases)
        longest = np.maximum(apart, loads + beside)
        total: Floats = longest.sum(axis=1)
        for i in np.flatnonzero((total < wide) & (priced + loads @ weights < wide)):
            vector = int(left[i])
            spare = wide - total[i] + longest[i] - beside[i] - loads[i]
            spare_price = wide - priced[i] - loads[i] @ weights
            cutoffs = {}
            for task in tasks:
                phase = int(relaxed.phase_of[task])
                sharing = task in bounds.shared and relaxed.trainers[task] in tasks
                seconds = float((bounds.shared[task] if sharing else bounds.seconds[task])[vector])
                most = float(spare[phase])
                if weights[phase] > 0:
                    most = min(most, float(spare_price / weights[phase]))
                cutoffs[task] = (seconds + most) * (1 + 1e-9)
            limits = [*(apart[i] - beside[i]), *weights, wide - beside[i].sum(), wide - priced[i]]
            needed.add(vector, tasks, np.array(limits), cutoffs)


def _by_phase(
    problem: ExactProblem, tasks: tuple[int, ...], rows: Floats, others: Floats
) -> tuple[Floats, Floats, Floats]:
    """Per vector and phase: seconds of other groups, what they add to this group's, and this group's own seconds."""
    relaxed = problem.relaxed
    number = relaxed.num_phases
    apart, beside, loads = (np.zeros((len(rows), number)) for _ in range(3))
    for phase in range(number):
        members = [task for task in range(relaxed.num_tasks) if relaxed.phase_of[task] == phase]
        mine = [task for task in members if task in tasks]
        apart[:, phase] = others[:, members].max(axis=1)
        if mine:
            beside[:, phase] = others[:, mine].max(axis=1)
            loads[:, phase] = rows[:, mine].max(axis=1)
    foreign = [trainer for trainer, targets in relaxed.targets.items() if not set(targets).isdisjoint(tasks)]
    last = int(relaxed.phase_of.max())
    if len(foreign) == 1 and not any(relaxed.phase_of[task] == last for task in tasks):  # a sync keeps the trainer busy
        beside[:, last] = others[:, foreign[0]]
        loads[:, last] = rows[:, foreign[0]]
    return apart, beside, loads


def least_beside(room: Floats, held: Floats, values: Floats) -> Floats:
    """Per row of ``room`` the least of every column of ``values`` among the items that fit; inf where none does."""
    result = np.full((len(room), values.shape[1]), np.inf)
    size = max(1, MOST_COMPARED // max(1, held.size + values.size))
    for start in range(0, len(room), size):
        part = room[start : start + size]
        fits = np.all(held[None] <= part[:, None], axis=2)
        result[start : start + size] = np.where(fits[:, :, None], values[None], np.inf).min(axis=1)
    return result
