"""A job as the exact solver sees it: its space, its relaxation, and the kernels that cost options without cuts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.tables import SCALARS, CostTables
from hetrl.cost.unit import UnitCosts
from hetrl.errors import SpecError
from hetrl.search.context import ENGINE_CONCURRENCY, SearchContext
from hetrl.search.exact.finding import exact_finder
from hetrl.search.exact.relaxation import Relaxation, relaxation
from hetrl.search.exact.space import Space, Vector, declared_space
from hetrl.search.level2_parallelism import allowed_features
from hetrl.search.level3_colocation import SHARED
from hetrl.spec.job import Job
from hetrl.spec.load_constraints import solver_problems
from hetrl_kernels.groups import Steps
from hetrl_kernels.options import Option
from hetrl_kernels.tables import Tables

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """A group: its tasks, its vector, and one option per task.

    Parameters
    ----------
    rows
        Coefficients in the relaxed step.
    syncs
        Per target its sync, or the lower bound of it where its train task is elsewhere.
    """

    tasks: tuple[int, ...]
    vector: Vector
    options: tuple[Option, ...]
    syncs: dict[int, float]
    rows: Floats
    usd_per_second: float


class ExactProblem:
    """Space, relaxation and kernels of one job.

    Parameters
    ----------
    context
        The job as the hybrid search lowered it; one is made if none is given.
    """

    def __init__(self, job: Job, costs: UnitCosts, context: SearchContext | None = None) -> None:
        self.job = job
        self.costs = costs
        refuse_constraints(job)
        self.context = context or SearchContext(job, costs)
        self.tables = self.context.tables
        self.space: Space = declared_space(job, self.tables)
        self.kernel_tables = self.context.kernel_tables
        if self.space.best_links:
            self.tables = best_links(self.space, self.tables)
            self.kernel_tables = Tables(self.tables, dict(zip(SCALARS, self.tables.scalars.tolist(), strict=True)))
        self.relaxed: Relaxation = relaxation(self.space)
        self.dollars = job.optimizer.minimises_dollars
        first = [each.nodes[0] for each in self.space.classes]
        self.usd_per_second: Floats = self.tables.node_usd[first] / 3600  # of one device of each class
        self.band: tuple[float, float] | None = None
        self.finder = exact_finder(
            job,
            self.tables,
            self.kernel_tables,
            allowed_features(job),
            ENGINE_CONCURRENCY,
            self.space.classes,
            self.space.phases,
        )
        fluid = self.context.fluid
        self.steps = Steps(self.finder, fluid.device_seconds, fluid.latency, fluid.fixed, self.dollars)

    def held(self, vectors: Floats) -> Floats:
        """Return what groups on these vectors take of `room`: devices, and dollars per second in a price band."""
        if self.band is None:
            return vectors
        return np.column_stack([vectors, vectors @ self.usd_per_second])

    @property
    def room(self) -> Floats:
        """Devices of every class; with a price band, its upper end."""
        capacity = self.space.capacity.astype(np.float64)
        return capacity if self.band is None else np.append(capacity, self.band[1])

    @property
    def least_price(self) -> float:
        """Objective of one second: 1, or the lower end of the price band where dollars are the objective."""
        return 1.0 if self.band is None or not self.dollars else self.band[0]

    def limit_price(self, usd_per_second: float) -> None:
        """Look only at plans whose groups' devices cost at most this."""
        self.band = (0.0, usd_per_second * (1 + 1e-12))  # sums of prices may differ in their last bit

    def column(self, tasks: tuple[int, ...], vector: Vector, options: Iterable[Option]) -> Column:
        """Put options, in any order, into a column."""
        by_task = {option.task: option for option in options}
        chosen = tuple(by_task[task] for task in tasks)
        syncs = {}
        for trainer, targets in self.relaxed.targets.items():
            for target in targets:
                if target not in by_task or by_task[target].weights == SHARED:
                    continue
                if trainer in by_task and self.space.best_links:  # its own devices' links alone: no more is certain
                    syncs[target] = self.steps.weight_sync(by_task[target], by_task[target])
                elif trainer in by_task:
                    syncs[target] = self.steps.weight_sync(by_task[trainer], by_task[target])
                else:
                    syncs[target] = self.finder.sync_floor(by_task[target])
        rows = self.relaxed.rows(
            tasks,
            {task: np.array([by_task[task].seconds]) for task in tasks},
            {
                target: np.array([syncs.get(target, 0.0)])
                for targets in self.relaxed.targets.values()
                for target in targets
            },
            1,
        )[0]
        price = self.steps.price([self.steps.choice(chosen, self.space.key(vector))]) if self.dollars else 0.0
        return Column(tasks=tasks, vector=vector, options=chosen, syncs=syncs, rows=rows, usd_per_second=price)


def refuse_constraints(job: Job) -> None:
    """Refuse what this solver does not know.

    Raises
    ------
    SpecError
        For jobs with ``optimizer.constraints``.
    """
    problems = solver_problems(replace(job.optimizer, solver="ilp"))
    if problems:
        raise SpecError(problems)


def best_links(space: Space, tables: CostTables) -> CostTables:
    """Give every pair of nodes of two classes the best latency and the best bandwidth of any such pair."""
    latency, bandwidth = tables.link_latency.copy(), tables.link_bandwidth.copy()
    own = np.eye(len(latency), dtype=np.bool_)
    for a in space.classes:
        for b in space.classes:
            block = np.ix_(a.nodes, b.nodes)
            apart = ~own[block]
            if apart.any():
                latency[block] = np.where(apart, latency[block][apart].min(), latency[block])
                bandwidth[block] = np.where(apart, bandwidth[block][apart].max(), bandwidth[block])
    pairs = np.stack([latency.ravel(), bandwidth.ravel()], axis=1)
    _, kind = np.unique(pairs, axis=0, return_inverse=True)
    return tables._replace(
        link_latency=latency,
        link_bandwidth=bandwidth,
        link_kind=np.ascontiguousarray(kind.reshape(latency.shape), dtype=np.int32),
    )


def declared_vectors(problem: ExactProblem) -> Sequence[Vector]:
    """Every device vector that a group may have."""
    return [tuple(int(each) for each in row) for row in problem.space.vectors]


def declared_options(problem: ExactProblem, task: int, vector: Vector, trainer: Option | None = None) -> list[Option]:
    """Every option of a task on a vector's canonical placement, costed but not pruned.

    Engines have all memory to themselves; beside others they are costed by `hetrl_kernels.exact_groups`. With
    ``trainer``, an option of the role's train task on the same vector, those that score with its weights.
    """
    return problem.finder.declared(task, problem.space.key(vector), trainer)
