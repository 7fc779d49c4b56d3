"""Combinations of columns on real nodes: every packing of their remainders is evaluated, the best one is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from hetrl.plan.plan import Group, Plan, TaskPlan
from hetrl.search.exact.problem import Column, ExactProblem
from hetrl.search.exact.space import packings
from hetrl.search.level3_colocation import task_plan
from hetrl_kernels.exact_relocation import relocated
from hetrl_kernels.groups import Choice
from hetrl_kernels.layouts import Devices
from hetrl_kernels.options import Option


class Placed:
    """A combination on its best packing.

    Parameters
    ----------
    seconds
        Of the step (or period), inf if no packing fits.
    objective
        Seconds, or dollars.
    """

    def __init__(
        self,
        columns: tuple[Column, ...],
        seconds: float,
        objective: float,
        groups: list[tuple[tuple[Option, ...], NDArray[np.int32]]],
    ) -> None:
        self.columns = columns
        self.seconds = seconds
        self.objective = objective
        self.groups = groups

    def plan(self, problem: ExactProblem) -> Plan:
        """Devices by name: groups take consecutive devices of every node."""
        topology = problem.job.topology
        names = [task.name for task in problem.job.workflow.tasks]
        taken = list(topology.first_device)
        groups: list[Group] = []
        plans: list[TaskPlan] = []
        for options, counts in self.groups:
            of_nodes = [range(start, start + int(count)) for start, count in zip(taken, counts, strict=True)]
            devices = tuple(device for each in of_nodes for device in each)
            groups.append(Group(tasks=tuple(names[option.task] for option in options), devices=devices))
            plans.extend(
                task_plan(problem.context, option, of_nodes, option.shares(), keep_idle=True) for option in options
            )
            taken = [each.stop for each in of_nodes]
        return Plan(groups=tuple(groups), tasks=tuple(sorted(plans, key=lambda each: names.index(each.task))))


def on_best_links(problem: ExactProblem, columns: Sequence[Column], relaxed: float) -> Placed:
    """Take a combination at its relaxed cost, which bounds it on any nodes, placed on the first ones that fit."""
    for groups, _ in _ways(problem, columns):
        return Placed(tuple(columns), relaxed, relaxed, groups)
    return Placed(tuple(columns), math.inf, math.inf, [])


def canonical_plans(problem: ExactProblem, columns: Sequence[Column]) -> Iterator[Plan]:
    """All plans of a combination with groups on consecutive nodes, in every order of the groups."""
    for order in permutations(columns):
        for groups, _ in _ways(problem, order):
            yield Placed((), math.inf, math.inf, groups).plan(problem)


def place(problem: ExactProblem, columns: Sequence[Column]) -> Placed:
    """Evaluate all packings of a combination; options keep their costs, since the nodes of a class are equal."""
    best = Placed(tuple(columns), math.inf, math.inf, [])
    for groups, choices in _ways(problem, columns):
        seconds = problem.steps.placed(choices)
        objective = seconds * problem.steps.price(choices) if problem.dollars and seconds < math.inf else seconds
        if objective < best.objective:
            best = Placed(tuple(columns), seconds, objective, groups)
    return best


def _ways(
    problem: ExactProblem, columns: Sequence[Column]
) -> Iterator[tuple[list[tuple[tuple[Option, ...], NDArray[np.int32]]], list[Choice]]]:
    counts = [problem.space.counts(column.vector) for column in columns]
    for maps in packings(problem.space, [column.vector for column in columns]):
        choices: list[Choice] = []
        groups = []
        for column, canonical, to in zip(columns, counts, maps, strict=True):
            here = np.zeros_like(canonical)
            here[to[canonical > 0]] = canonical[canonical > 0]
            devices = Devices(problem.kernel_tables, here)
            moved = tuple(relocated(option, to, devices) for option in column.options)
            choices.append(problem.steps.choice(moved, here.tobytes()))
            groups.append((moved, here))
        yield groups, choices
