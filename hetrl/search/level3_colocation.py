"""Level 3: how the tasks of one group share their devices.

From every task's undominated options, the combination with the smallest total time that holds in every interval on
every node. Generation comes last, since its KV pool lives in the room that is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hetrl.plan.plan import TaskPlan
from hetrl.search.context import DeviceCounts, SearchContext
from hetrl.search.engines import EngineOptions
from hetrl.search.task_options import FloatArray, TaskOption, TaskOptions
from hetrl.spec.workflow import Task

MAX_COMBINATIONS = 4_000
COMBINE_ORDER = ("train", "score", "generate")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupChoice:
    """The chosen plans of a group's tasks, their seconds, and the host bytes per node."""

    plans: tuple[TaskPlan, ...]
    seconds: tuple[float, ...]
    host: FloatArray


class Colocation:
    """Best combinations, memoised by (tasks of the group, devices per node)."""

    def __init__(self, context: SearchContext) -> None:
        self.context = context
        self.options = TaskOptions(context)
        self.engines = EngineOptions(self.options)
        self._host_limits = np.array([float(node.host_ram_bytes) for node in context.topology.nodes])
        self._groups: dict[tuple[tuple[str, ...], DeviceCounts], GroupChoice | None] = {}

    def task_options(self, task: Task, counts: DeviceCounts) -> tuple[TaskOption, ...]:
        """Options of one task with the devices to itself, fastest first."""
        return self.engines.alone(task, counts) if task.kind == "generate" else self.options.options(task, counts)

    def group(self, names: tuple[str, ...], counts: DeviceCounts) -> GroupChoice | None:
        """Best combination for a group of tasks on its devices, or None if none fits."""
        key = (names, counts)
        if key not in self._groups:
            self._groups[key] = self._combine(names, counts) if any(counts) else None
            if self._groups[key] is None:
                self.context.counts.cuts["GROUP_MEMORY"] += 1
        return self._groups[key]

    def _combine(self, names: tuple[str, ...], counts: DeviceCounts) -> GroupChoice | None:
        workflow = self.context.job.workflow
        tasks = sorted((workflow.task(name) for name in names), key=lambda task: COMBINE_ORDER.index(task.kind))
        lists = [self.task_options(task, counts) for task in tasks]
        if not all(lists):
            return None
        ahead = [0.0] * (len(tasks) + 1)
        for index in reversed(range(len(tasks))):
            fastest = lists[index][0].seconds
            if tasks[index].kind == "score" and any(each.role == tasks[index].role and each.kind == "train" for each in tasks):
                fastest = 0.0  # sharing the trainer's weights may be faster than any option of its own
            ahead[index] = ahead[index + 1] + fastest
        best: list[TaskOption] = []
        best_seconds = math.inf
        visited = 0

        def descend(index: int, chosen: list[TaskOption], seconds: float) -> None:
            nonlocal best, best_seconds, visited
            visited += 1
            if visited > MAX_COMBINATIONS or seconds + ahead[index] >= best_seconds:
                return
            if index == len(tasks):
                best, best_seconds = list(chosen), seconds
                return
            for option in self._with_neighbours(tasks[index], lists[index], chosen, tasks, best_seconds - seconds):
                if seconds + option.seconds + ahead[index + 1] < best_seconds:
                    chosen.append(option)
                    if self._fits(chosen):
                        descend(index + 1, chosen, seconds + option.seconds)
                    chosen.pop()

        descend(0, [], 0.0)
        if visited > MAX_COMBINATIONS:
            self.context.counts.cuts["COMBINATION_OVERFLOW"] += 1
        if not best:
            return None
        by_name = {option.plan.task: option for option in best}
        ordered = [by_name[name] for name in names]
        return GroupChoice(
            plans=tuple(option.plan for option in ordered),
            seconds=tuple(option.seconds for option in ordered),
            host=np.sum([option.host for option in ordered], axis=0),
        )

    def _with_neighbours(
        self,
        task: Task,
        options: tuple[TaskOption, ...],
        chosen: Sequence[TaskOption],
        tasks: Sequence[Task],
        seconds_left: float,
    ) -> Iterator[TaskOption]:
        """Options given what is already chosen: shared weights for a trained role, KV pools in the room that is left.

        Engines whose time alone on the devices exceeds ``seconds_left`` are not worked out.
        """
        if task.kind == "score":
            for other, option in zip(tasks, chosen, strict=False):
                if other.role == task.role and other.kind == "train":
                    yield from self.options.shared_options(task, option.plan)
        if task.kind != "generate":
            yield from options
            return
        idle, stay = self._taken(chosen)
        for option in options:
            if option.seconds >= seconds_left:
                return
            yield from self.engines.beside(task, option, "resident", stay)
            if chosen:
                yield from self.engines.beside(task, option, "dropped", idle)

    def _taken(self, chosen: Sequence[TaskOption]) -> tuple[FloatArray, FloatArray]:
        """Bytes per node that an engine must leave: while it runs, and if it stays loaded in all other intervals."""
        idle = np.zeros(len(self.context.nodes))
        for each in chosen:
            idle = idle + each.idle
        stay = idle
        for each in chosen:
            stay = np.maximum(stay, idle - each.idle + np.maximum(each.active, each.sync))
        return idle, stay

    def _fits(self, chosen: Sequence[TaskOption]) -> bool:
        idle = sum(option.idle for option in chosen)
        limits = self.options.limits
        if any((idle - option.idle + option.active > limits).any() for option in chosen):
            return False
        if (sum(option.sync for option in chosen) > limits).any():
            return False
        return not bool((sum(option.host for option in chosen) > self._host_limits).any())
