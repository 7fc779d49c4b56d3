"""The bound of a whole job: over all groupings, and over all numbers of devices of every type in every group.

Every task has a bound on every point of a grid of device counts. A group's counts lie in a cell of the grid; its tasks
are bounded at the cell's upper corner, and the other groups by what the lower corner leaves over. Where every task of
one phase must end before any of the next begins, phases add up, and in each the busiest group decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.tables import TASK_KINDS, CostTables
from hetrl.search.bounds.fluid import FluidBounds, fleet_bound, phase_bound, phases
from hetrl.search.bounds.generation import generation_bound
from hetrl.search.bounds.passes import Floats, Ints
from hetrl.search.bounds.scoring import scoring_bound
from hetrl.search.bounds.training import training_bound
from hetrl.search.level1_grouping import set_partitions
from hetrl.spec.job import Job

MOST_POINTS = 81
"""Points of the grid of device counts."""
MOST_PAIRS = 60_000
"""Pairs of cells looked at for groupings of three groups and more; with more of them one group's cells have to do."""
MOST_TASKS = 7
"""With more tasks there are too many groupings, and only the fleet as a whole is bounded."""


def lower_bound(job: Job, tables: CostTables, fluid: FluidBounds) -> float:
    """Seconds that no plan of this job can undercut (step time, or period if asynchronous)."""
    quick = fleet_bound(job, tables, fluid)
    return quick if len(job.workflow.tasks) > MOST_TASKS else max(quick, _bound(job, tables, fluid))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Device counts: per type ascending levels from none to all.

    Parameters
    ----------
    levels
        Per type.
    shape
        Number of levels of every type; points are numbered in C order.
    """

    levels: tuple[Ints, ...]
    shape: tuple[int, ...]

    @property
    def points(self) -> Ints:
        """``[K, Y]``."""
        return np.stack([each.ravel() for each in np.meshgrid(*self.levels, indexing="ij")], axis=1)

    @property
    def least(self) -> Ints:
        """Lower corners of the cells whose upper corners are the points."""
        lowest = [np.append(0, level[:-1] + 1) for level in self.levels]
        return np.stack([each.ravel() for each in np.meshgrid(*lowest, indexing="ij")], axis=1)

    def number(self, counts: Ints) -> Ints:
        """Points that are at least ``counts`` ``[..., Y]``."""
        index = [np.searchsorted(level, counts[..., kind]) for kind, level in enumerate(self.levels)]
        return np.ravel_multi_index(tuple(index), self.shape)


def grid_of(devices: Sequence[int]) -> Grid:
    """Levels of every type: one by one where the fleet is small, else evenly spaced."""
    steps = max(devices)
    while True:
        levels = tuple(
            np.unique(np.linspace(0, number, min(number, steps) + 1).round().astype(np.int64)) for number in devices
        )
        if steps == 1 or int(np.prod([len(each) for each in levels])) <= MOST_POINTS:
            return Grid(levels=levels, shape=tuple(len(each) for each in levels))
        steps -= 1


def task_bounds(job: Job, tables: CostTables, fluid: FluidBounds, grid: Grid) -> Floats:
    """Seconds of every task on every point, ``[A, K]``, falling in every count."""
    points = grid.points
    result = np.empty((len(job.workflow.tasks), len(points)))
    known: dict[tuple[object, ...], Floats] = {}
    for index in range(len(result)):
        kind = TASK_KINDS[tables.task_kind[index]]
        bound = {"train": training_bound, "score": scoring_bound, "generate": generation_bound}[kind]
        look = (
            kind,
            int(tables.task_model[index]),
            int(tables.task_sequences[index]),
            int(tables.task_role_is_actor[index]),
            int(tables.task_trained[index]),
        )
        if look not in known:
            known[look] = bound(job, tables, index, points)
        with np.errstate(divide="ignore"):
            flowing = 1.0 / (points / fluid.device_seconds[index]).sum(axis=1) + fluid.fixed[index]
        row = np.maximum(known[look], np.maximum(flowing, fluid.latency[index])).reshape(grid.shape)
        for axis in range(row.ndim):
            row = np.minimum.accumulate(row, axis=axis)
        result[index] = row.ravel()
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Ways to give devices to two groups and the rest: numbers of points, one entry per way."""

    first: Ints
    second: Ints
    rest: Ints


def _bound(job: Job, tables: CostTables, fluid: FluidBounds) -> float:
    devices = np.zeros(len(tables.type_flops), dtype=np.int64)
    np.add.at(devices, tables.node_type, tables.node_devices)
    grid = grid_of(devices.tolist())
    seconds = task_bounds(job, tables, fluid, grid)
    everything = len(seconds[0]) - 1
    floors = [phase_bound(devices.astype(np.float64), fluid, phase) for phase in phases(job)]
    schedule = Schedule(phases=phases(job), floors=floors, staleness=job.staleness, seconds=seconds)
    least = grid.least
    left = devices[None, :] - least
    two = Splits(first=np.arange(len(least)), second=grid.number(left), rest=np.full(len(least), -1, dtype=np.int64))
    three = _pairs(grid, least, devices)
    best = np.inf
    partitions = []
    for grouping in set_partitions(len(seconds)):
        if len(grouping) <= int(devices.sum()):
            alone = schedule.of([(tasks, np.array([everything])) for tasks in grouping])
            partitions.append((float(alone[0]), grouping))
    for least_seconds, grouping in sorted(partitions):
        if least_seconds >= best:
            break
        order = sorted(grouping, key=lambda tasks: -seconds[list(tasks), everything].sum())
        splits = two if len(order) < 3 else three
        groups = [(order[0], splits.first)]
        if len(order) == 1:
            groups = [(order[0], np.array([everything]))]
        elif len(order) == 2:
            groups.append((order[1], splits.second))
        else:
            groups.append((order[1], splits.second))
            groups.extend((tasks, splits.rest) for tasks in order[2:])
        best = min(best, float(schedule.of(groups).min()))
    return best


def _pairs(grid: Grid, least: Ints, devices: Ints) -> Splits:
    """Cells of two groups whose lower corners leave room for each other."""
    number = len(least)
    if number * number > MOST_PAIRS * 4:
        return Splits(first=np.arange(number), second=grid.number(devices - least), rest=grid.number(devices - least))
    first, second = (each.ravel() for each in np.meshgrid(np.arange(number), np.arange(number), indexing="ij"))
    left = devices[None, :] - least[first] - least[second]
    possible = (left >= 0).all(axis=1)
    first, second, left = first[possible], second[possible], left[possible]
    return Splits(first=first, second=second, rest=grid.number(left))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Puts the bounds of tasks together to the step's.

    Parameters
    ----------
    phases
        Task indices of phases that follow each other.
    floors
        Seconds of every phase, however it is split.
    seconds
        ``[A, K]``.
    """

    phases: Sequence[tuple[int, ...]]
    floors: Sequence[float]
    staleness: int
    seconds: Floats

    def of(self, groups: Sequence[tuple[tuple[int, ...], NDArray[np.int64]]]) -> Floats:
        """Seconds of the step for every way to place the groups: (tasks, numbers of points)."""
        if self.staleness > 0:
            return self._period(groups)
        total = np.zeros(len(groups[0][1]))
        for phase, floor in zip(self.phases, self.floors, strict=True):
            longest = np.full(len(total), floor)
            for tasks, points in groups:
                mine = [task for task in phase if task in tasks]
                if mine:
                    longest = np.maximum(longest, sum(self.seconds[task, points] for task in mine))
            total = total + longest
        return total

    def _period(self, groups: Sequence[tuple[tuple[int, ...], NDArray[np.int64]]]) -> Floats:
        """Return the busiest group, or the loop of steps that overlap."""
        busiest = np.max([sum(self.seconds[task, points] for task in tasks) for tasks, points in groups], axis=0)
        loop = np.zeros(len(busiest))
        for phase in self.phases:
            mine = [self.seconds[task, points] for tasks, points in groups for task in tasks if task in phase]
            loop = loop + np.max(mine, axis=0)
        return np.asarray(np.maximum(busiest, loop / (1 + self.staleness)))
