"""Bounds of tasks on device vectors, and the columns of groups, worked out where they are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.model import PHASES
from hetrl.search.exact.problem import Column, ExactProblem
from hetrl.search.exact.space import Vector
from hetrl.search.exact.workers import Workers
from hetrl_kernels.exact_groups import GroupColumns
from hetrl_kernels.options import Option

Floats = NDArray[np.float64]
BATCH = 512
"""Bounds that are worked out between two looks at the clock."""
MAX_COLUMNS = 20_000
"""Columns of one group on one vector; more are an overflow, which is counted and ends the proof."""


class TaskBounds:
    """Lower bounds ``[A, V]`` of all tasks on all vectors: the fluid bound, or the fastest option once asked for.

    ``syncs`` are those of tasks whose weights come from another group.
    """

    def __init__(self, problem: ExactProblem, workers: Workers) -> None:
        self.problem = problem
        self.workers = workers
        space = problem.space
        fluid = problem.context.fluid
        types = np.array([problem.tables.node_type[each.nodes[0]] for each in space.classes])
        rates = 1.0 / fluid.device_seconds[:, types]  # [A, classes]
        with np.errstate(divide="ignore"):
            alone = 1.0 / (space.vectors @ rates.T).T
        self.seconds: Floats = np.maximum(fluid.latency[:, None], alone + fluid.fixed[:, None])
        self.exact = np.zeros(self.seconds.shape, dtype=np.bool_)
        self.shared: dict[int, Floats] = {}
        for scorer in problem.relaxed.trainers:
            self.shared[scorer] = self.seconds[scorer].copy()
        targets = {target for each in problem.relaxed.targets.values() for target in each}
        self.syncs = {target: self.first_syncs(target) for target in targets}
        self.num_worked_out = 0

    def first_syncs(self, task: int) -> Floats:
        """Least syncs on all vectors: where all nodes are the group's own, they receive at least one copy together."""
        space, tables = self.problem.space, self.problem.tables
        sizes = np.array([each.size for each in space.classes])
        nodes, rest = np.divmod(space.vectors, sizes)
        apart = ~np.eye(len(tables.node_type), dtype=np.bool_)
        if not apart.any():
            return np.zeros(len(nodes))
        latency, bandwidth = tables.link_latency[apart].min(), tables.link_bandwidth[apart].max()
        scale, fixed = tables.calibration[:, PHASES.index("sync"), :2].min(axis=0)
        seconds = scale * (latency + tables.transfer_weights[task] / nodes.sum(axis=1).clip(1) / bandwidth) + fixed
        whole = (rest == 0).all(axis=1) & (nodes.sum(axis=1) < len(tables.node_type))
        return np.where(whole, seconds, 0.0)

    def refine(self, tasks: Iterable[int], vectors: NDArray[np.int64], stop: Callable[[], bool]) -> None:
        """Replace bounds by the fastest options, until the caller's time is over."""
        wanted = list(tasks)
        items = [(task, int(index)) for index in vectors for task in wanted if not self.exact[task, index]]
        for start in range(0, len(items), BATCH):
            if stop():
                return
            batch = items[start : start + BATCH]
            for (task, index), (best, together, sync) in zip(batch, self.workers.fastest(batch), strict=True):
                self.seconds[task, index] = max(self.seconds[task, index], best)
                if task in self.shared:
                    self.shared[task][index] = max(self.shared[task][index], together)
                if task in self.syncs:
                    self.syncs[task][index] = max(self.syncs[task][index], sync)
                self.exact[task, index] = True
            self.num_worked_out += len(batch)

    def rows(self, tasks: Sequence[int], vectors: NDArray[np.int64]) -> Floats:
        """Rows of a group of tasks on vectors, from the bounds; syncs inside the group count nothing."""
        relaxed = self.problem.relaxed
        seconds = {}
        for task in tasks:
            sharing = task in self.shared and relaxed.trainers[task] in tasks
            seconds[task] = (self.shared[task] if sharing else self.seconds[task])[vectors]
        syncs = {
            target: np.zeros(len(vectors)) if trainer in tasks else self.syncs[target][vectors]
            for trainer, targets in relaxed.targets.items()
            for target in targets
            if target in tasks
        }
        return relaxed.rows(tasks, seconds, syncs, len(vectors))


class ColumnMaker:
    """Columns of groups on one vector; fronts of tasks are worked out once for all groups of the vector.

    Parameters
    ----------
    deadline
        Of `time.monotonic`: what is being worked out then is left unfinished, and the caller has to look at the clock.
    """

    def __init__(self, problem: ExactProblem, deadline: float = math.inf) -> None:
        self.problem = problem
        self.deadline = deadline
        self.num_columns = 0
        self.num_fronts = 0
        self.num_options = 0
        self.num_overflows = 0
        self.known: dict[object, Column] = {}

    def make(
        self,
        vector: Vector,
        groups: Mapping[tuple[int, ...], Sequence[Floats]],
        task_cutoffs: Mapping[tuple[int, ...], Mapping[int, float]],
    ) -> dict[tuple[int, ...], list[Column]]:
        """Columns of groups of tasks on a vector.

        Parameters
        ----------
        groups
            Group -> rows of limits, one of which a column must keep (`GroupColumns`).
        task_cutoffs
            Group -> seconds that each of its tasks may take.
        """
        problem = self.problem
        key = problem.space.key(vector)
        trainers = problem.relaxed.trainers
        widest: dict[int, float] = {}
        pair_widest: dict[tuple[int, int], tuple[float, float]] = {}
        for cutoffs in task_cutoffs.values():
            for task, cutoff in cutoffs.items():
                widest[task] = max(widest.get(task, 0.0), cutoff)
                if task in trainers and trainers[task] in cutoffs:
                    pair = (trainers[task], task)
                    before = pair_widest.get(pair, (0.0, 0.0))
                    pair_widest[pair] = (max(before[0], cutoffs[trainers[task]]), max(before[1], cutoff))
        fronts: dict[int, list[Option]] = {}
        for task, cutoff in widest.items():
            fronts[task] = problem.finder.front(task, key, cutoff)
            self.num_fronts += 1
            self.num_options += len(fronts[task])
        pairs = {pair: problem.finder.shared_pairs(*pair, key, *cutoffs) for pair, cutoffs in pair_widest.items()}
        result: dict[tuple[int, ...], list[Column]] = {}
        for tasks, limits in groups.items():
            mine = {pair: each for pair, each in pairs.items() if pair[0] in tasks and pair[1] in tasks}
            if not all(fronts[task] or any(task in pair and each for pair, each in mine.items()) for task in tasks):
                result[tasks] = []
                continue
            search = GroupColumns(
                problem.finder,
                tasks,
                key,
                fronts,
                mine,
                problem.relaxed.phase_of,
                np.stack(limits),
                MAX_COLUMNS,
                self.deadline,
            )
            found = search.run()
            self.num_overflows += search.overflow
            self.num_columns += len(found)
            made = [self.column(tasks, vector, options) for options in found]
            result[tasks] = [column for column in made if self.owns_what_it_uses(column)]
        return result

    def column(self, tasks: tuple[int, ...], vector: Vector, options: tuple[Option, ...]) -> Column:
        """Return the column of these options; the same object whenever the same options come up again."""
        key = (vector, tuple(_identity(option) for option in options))
        if key not in self.known:
            self.known[key] = self.problem.column(tasks, vector, options)
        return self.known[key]

    def owns_what_it_uses(self, column: Column) -> bool:
        """Whether, where dollars count, the group's tasks use all of its devices; others belong to no group."""
        price = float(np.dot(column.vector, self.problem.usd_per_second))
        return not self.problem.dollars or column.usd_per_second >= price * (1 - 1e-9)


def _identity(option: Option) -> tuple[object, ...]:
    stages = tuple(tuple(replica) for replica in option.stages())
    settings = (option.micro_batch, option.recompute, option.sharding, option.weights, option.optimizer)
    return (option.task, option.degree, *settings, stages, tuple(option.shares()))
