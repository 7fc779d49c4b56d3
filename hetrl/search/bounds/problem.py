"""The bound of a whole job: over all groupings, and over all numbers of devices of every type in every group.

Branch and bound over boxes of device counts: every group has between ``least`` and ``most`` devices of every type. Its
tasks take no less than on ``most`` of them, which is what the other groups' least counts leave. Where every task of
one phase must end before any of the next begins, phases add up, and in each the busiest group decides. The box with
the smallest bound is halved again and again; its bound holds for the job at any time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hetrl.cost.tables import TASK_KINDS, CostTables
from hetrl.search.bounds.fluid import FluidBounds, fleet_bound, phase_bounds, phases
from hetrl.search.bounds.generation import generation_bound
from hetrl.search.bounds.passes import Ints
from hetrl.search.bounds.scoring import scoring_bound
from hetrl.search.bounds.training import training_bound
from hetrl.search.level1_grouping import set_partitions
from hetrl.spec.job import Job

MOST_BOXES = 4000
"""Boxes halved; then the smallest bound so far has to do."""
MOST_POINTS = 700
"""Bounds of single tasks worked out, likewise."""
MOST_TASKS = 7
"""With more tasks there are too many groupings, and only the fleet as a whole is bounded."""
MOST_TYPES = 8
"""With more device types there are too many compositions of engines, likewise; these take seconds."""

BOUNDS = {"train": training_bound, "score": scoring_bound, "generate": generation_bound}


def lower_bound(job: Job, tables: CostTables, fluid: FluidBounds) -> float:
    """Seconds that no plan of this job can undercut (step time, or period if asynchronous)."""
    floors = phase_bounds(job, tables, fluid)
    quick = fleet_bound(job, tables, fluid, floors)
    if len(job.workflow.tasks) > MOST_TASKS or len(tables.type_flops) > MOST_TYPES:
        return quick
    return max(quick, BoxSearch(job, tables, fluid, floors).run())


class TaskBounds:
    """Bounds of single tasks on device counts, each worked out once."""

    def __init__(self, job: Job, tables: CostTables, fluid: FluidBounds) -> None:
        self.fluid = fluid
        looks: dict[object, tuple[Callable[[Ints], float], dict[bytes, float]]] = {}
        self.functions: list[Callable[[Ints], float]] = []
        self.known: list[dict[bytes, float]] = []
        self.num_points = 0
        for index in range(len(job.workflow.tasks)):
            kind = TASK_KINDS[tables.task_kind[index]]
            look = (
                kind,
                int(tables.task_model[index]),
                int(tables.task_sequences[index]),
                int(tables.task_role_is_actor[index]),
                int(tables.task_trained[index]),
            )
            if look not in looks:
                looks[look] = BOUNDS[kind](job, tables, index), {}
            function, known = looks[look]
            self.functions.append(function)
            self.known.append(known)

    def seconds(self, task: int, counts: Ints) -> float:
        """Seconds that the task takes at least on ``counts`` devices ``[Y]``."""
        key = counts.tobytes()
        found = self.known[task].get(key)
        if found is None:
            with np.errstate(divide="ignore"):
                flowing = 1.0 / (counts / self.fluid.device_seconds[task]).sum() + self.fluid.fixed[task]
            found = max(self.functions[task](counts), float(flowing), float(self.fluid.latency[task]))
            self.known[task][key] = found
            self.num_points += 1
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Device counts of every group of a grouping, ``[G, Y]`` each."""

    grouping: tuple[tuple[int, ...], ...]
    least: Ints
    most: Ints


class BoxSearch:
    """Branch and bound over boxes, the smallest bound first."""

    def __init__(self, job: Job, tables: CostTables, fluid: FluidBounds, floors: Sequence[float]) -> None:
        self.tasks = TaskBounds(job, tables, fluid)
        self.devices = np.zeros(len(tables.type_flops), dtype=np.int64)
        np.add.at(self.devices, tables.node_type, tables.node_devices)
        self.weights = tables.type_flops / float(tables.type_flops @ self.devices)
        self.phases = phases(job)
        self.floors = floors
        self.staleness = job.staleness
        self.groupings = [
            tuple(map(tuple, grouping))
            for grouping in set_partitions(len(job.workflow.tasks))
            if len(grouping) <= self.devices.sum()
        ]
        self.num_boxes = 0

    def run(self) -> float:
        """Return the smallest bound of all boxes when no halving can raise it, or the limits are reached."""
        heap: list[tuple[float, int, Box]] = []
        number = 0
        for grouping in self.groupings:
            least = np.zeros((len(grouping), len(self.devices)), dtype=np.int64)
            box = Box(grouping=grouping, least=least, most=np.broadcast_to(self.devices, least.shape).copy())
            heap.append((self.seconds(box), number, box))
            number += 1
        heapq.heapify(heap)
        for self.num_boxes in range(MOST_BOXES):
            seconds, _, box = heap[0]
            if not np.isfinite(seconds) or (box.most.sum(axis=0) <= self.devices).all():
                break  # a way to give devices to groups: no box can do better
            if self.tasks.num_points >= MOST_POINTS:
                break
            heapq.heappop(heap)
            for half in self.halves(box):
                heapq.heappush(heap, (max(seconds, self.seconds(half)), number, half))
                number += 1
        return heap[0][0]

    def halves(self, box: Box) -> list[Box]:
        """Cut a box where its groups have too many devices together, weighing types by their speed."""
        kind = int(((box.most.sum(axis=0) - self.devices) * self.weights).argmax())
        group = int((box.most[:, kind] - box.least[:, kind]).argmax())
        middle = (box.least[group, kind] + box.most[group, kind]) // 2
        lower = box.most.copy()
        lower[group, kind] = middle
        upper = box.least.copy()
        upper[group, kind] = middle + 1
        left = self.devices - upper.sum(axis=0)
        most = np.minimum(box.most, upper + left)
        return [
            Box(grouping=box.grouping, least=box.least, most=lower),
            Box(grouping=box.grouping, least=upper, most=most),
        ]

    def seconds(self, box: Box) -> float:
        """Seconds of the step for any device counts in the box."""
        found = [
            {task: self.tasks.seconds(task, counts) for task in tasks}
            for tasks, counts in zip(box.grouping, box.most, strict=True)
        ]
        return self.step(found)

    def step(self, groups: Sequence[dict[int, float]]) -> float:
        """Seconds of the step (or the period) from those of every group's tasks."""
        if self.staleness > 0:
            loop = sum(max(group[task] for group in groups for task in group if task in phase) for phase in self.phases)
            return max(max(sum(group.values()) for group in groups), loop / (1 + self.staleness))
        total = 0.0
        for phase, floor in zip(self.phases, self.floors, strict=True):
            total += max(floor, *(sum(group[task] for task in phase if task in group) for group in groups))
        return total
