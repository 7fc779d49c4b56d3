"""What all levels of the search share: the job lowered to arrays, the compiled kernels, and counts of the work done."""

from __future__ import annotations

import copyreg
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.tables import SCALARS, CostTables, lower
from hetrl.cost.unit import UnitCosts
from hetrl.errors import Problem, SpecError
from hetrl.search.bounds import fluid_bounds, phases
from hetrl.search.exact.finding import exact_finder
from hetrl.search.exact.space import node_classes
from hetrl.search.level1_grouping import groupings as all_groupings
from hetrl.search.level2_parallelism import allowed_features, tensor_degree_allowed
from hetrl.spec.job import Job
from hetrl.spec.model import Model
from hetrl.spec.topology import Topology
from hetrl_kernels.finder import Finder
from hetrl_kernels.fronts import ExactFinder
from hetrl_kernels.groups import Choice, Steps
from hetrl_kernels.links import Links
from hetrl_kernels.tables import Tables

MAX_OPTIONS_PER_TASK = 16
MAX_DEVICE_TYPES = 64
MAX_TASKS = 16
"""Sizes that the kernels are built for."""
ENGINE_CONCURRENCY = 256
"""Sequences an engine runs at once at most (vLLM's default ``max_num_seqs``)."""

Grouping = tuple[tuple[int, ...], ...]
"""Task indices of every group."""
Assignment = tuple[bytes, ...]
"""Per group the int32 numbers of devices on every node. Devices of one node are interchangeable until level 5."""


def _read_only(table: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(table)


copyreg.pickle(MappingProxyType, lambda view: (_read_only, (dict(view),)))  # device types hold such tables


class SearchContext:
    """A job being planned: its arrays, and the kernels that keep everything they have worked out.

    Parameters
    ----------
    tensor_allowed
        Tensor degrees that a model may be split by.
    features
        Features that plans may use, as in `allowed_features`, which is the default.
    groupings
        Level 1's choices; all of them by default.
    """

    def __init__(
        self,
        job: Job,
        costs: UnitCosts,
        *,
        tensor_allowed: Callable[[Model, int], bool] = tensor_degree_allowed,
        features: NDArray[np.int32] | None = None,
        groupings: Sequence[Grouping] | None = None,
    ) -> None:
        self.job = job
        self.costs = costs
        limits = (
            ("cluster_topology.nodes", "device types", len(job.topology.device_types), MAX_DEVICE_TYPES),
            ("workflow", "tasks", len(job.workflow.tasks), MAX_TASKS),
        )
        problems = [
            Problem(path=path, message=f"too many {what} for the search", found=str(number), valid=f"at most {most}")
            for path, what, number, most in limits
            if number > most
        ]
        if problems:
            raise SpecError(problems)
        self.topology: Topology = job.topology
        kinds = [task.kind for task in job.workflow.tasks]
        self.groupings: tuple[Grouping, ...] = tuple(all_groupings(kinds) if groupings is None else groupings)
        self._choices: dict[str, Any] = {"tensor_allowed": tensor_allowed, "features": features, "groupings": groupings}
        self.nodes = tuple(range(len(job.topology.nodes)))
        self.tables: CostTables = lower(job, costs, tensor_allowed=tensor_allowed)
        self.kernel_tables = Tables(self.tables, dict(zip(SCALARS, self.tables.scalars.tolist(), strict=True)))
        self.features = allowed_features(job) if features is None else features
        self.finder = Finder(
            self.kernel_tables,
            self.features,
            MAX_OPTIONS_PER_TASK,
            ENGINE_CONCURRENCY,
        )
        self.fluid = fluid_bounds(job, self.tables)
        limit = job.optimizer.constraints.max_usd_per_step
        self.steps = Steps(
            self.finder,
            self.fluid.device_seconds,
            self.fluid.latency,
            self.fluid.fixed,
            job.optimizer.minimises_dollars,
            math.inf if limit is None else limit,
        )
        self.recombined: dict[tuple[Grouping, Assignment], list[Choice]] = {}

    @cached_property
    def links(self) -> Links:
        """The fleet's links in the orders that level 5 compares them in; worked out on first use."""
        return Links(self.kernel_tables)

    @cached_property
    def phase_of(self) -> NDArray[np.int32]:
        """Phase of every task, ``[A]``; tasks of several steps that overlap are one phase."""
        found = np.zeros(len(self.job.workflow.tasks), dtype=np.int32)
        if self.job.staleness == 0:
            for number, tasks in enumerate(phases(self.job)):
                found[list(tasks)] = number
        return found

    @cached_property
    def trainers(self) -> dict[int, int]:
        """Task whose role another trains -> the one that trains it."""
        tasks = self.job.workflow.tasks
        training = {task.role: index for index, task in enumerate(tasks) if task.kind == "train"}
        return {
            index: training[task.role]
            for index, task in enumerate(tasks)
            if task.kind != "train" and task.role in training
        }

    @cached_property
    def front_finder(self) -> ExactFinder:
        """Finds whole Pareto fronts of a task's options; made on first use."""
        number = int(self.phase_of.max()) + 1
        finder = exact_finder(
            self.job,
            self.tables,
            self.kernel_tables,
            self.features,
            ENGINE_CONCURRENCY,
            node_classes(self.job, self.tables, links=True),
            [tuple(np.flatnonzero(self.phase_of == phase).tolist()) for phase in range(number)],
        )
        finder.kept = self.finder.kept
        return finder

    def __reduce__(self) -> tuple[Callable[..., SearchContext], tuple[Job, UnitCosts]]:
        """Travel to another process as the job, which is lowered again there."""
        return partial(SearchContext, **self._choices), (self.job, self.costs)

    def work(self) -> Counter[str]:
        """Work done so far by kind, cuts by reason. What was known already is not done again, so it varies by lane."""
        return Counter(
            {
                "assignments_costed": self.steps.num_costed,
                "groups_combined": self.steps.num_combined,
                "options_bounded": self.finder.num_candidates,
                "options_costed": self.finder.num_costed,
                **{f"cut_{reason}": number for reason, number in self.finder.cuts.items()},
            }
        )

    def counts(self, values: Sequence[int] | NDArray[np.int32]) -> bytes:
        """Device counts of all nodes as the kernels' key."""
        return np.ascontiguousarray(values, dtype=np.int32).tobytes()

    def device_counts(self, devices: Iterable[int]) -> bytes:
        """Devices on every node as the kernels' key."""
        on_nodes = [self.topology.devices[device].node for device in devices]
        return self.counts(np.bincount(on_nodes, minlength=len(self.nodes)).astype(np.int32))

    @property
    def all_devices(self) -> bytes:
        """The whole fleet."""
        return self.counts(self.tables.node_devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A grouping with an assignment and its cost (seconds of a step, or the chosen objective).

    Parameters
    ----------
    recombined
        With the options that `hetrl.search.level3_recombine` chose; else those of `Steps.group`.
    """

    grouping: Grouping
    assignment: Assignment
    cost: float
    recombined: bool = False

    @property
    def feasible(self) -> bool:
        """Whether every group fits on its devices."""
        return self.cost < INFEASIBLE_COST


INFEASIBLE_COST = 1e12
"""Cost of an infeasible assignment; more for each group that fits nothing, graded by how much memory it lacks."""
