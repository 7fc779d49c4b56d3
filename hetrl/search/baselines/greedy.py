"""First fit by FLOP/s, made feasible: every task its own group, the heaviest task first on the fastest devices."""

from __future__ import annotations

import math

import numpy as np

from hetrl.search.context import Candidate, Grouping, SearchContext
from hetrl.search.level4_assignment import as_assignment, task_loads


def greedy(context: SearchContext) -> Candidate | None:
    """First fit with as few tasks sharing devices as memory admits; None if not even one group of all tasks fits.

    Where the tasks do not fit side by side, the two lightest groups share devices, until everything fits.
    """
    loads = task_loads(context)
    groups: list[tuple[int, ...]] = [(task,) for task in range(len(loads))]
    while True:
        candidate = _first_fit(context, tuple(groups), loads)
        if candidate is not None and candidate.feasible:
            return candidate
        if len(groups) == 1:
            return None
        groups.sort(key=lambda group: sum(loads[task] for task in group))
        groups = sorted([*groups[2:], tuple(sorted(groups[0] + groups[1]))])


def _first_fit(context: SearchContext, grouping: Grouping, loads: list[float]) -> Candidate | None:
    """Give each group, heaviest first, devices by speed until it fits, then the rest to who is busiest per FLOP/s."""
    tables = context.tables
    load = [sum(loads[task] for task in group) for group in grouping]
    nodes = sorted(context.nodes, key=lambda node: (-float(tables.type_flops[tables.node_type[node]]), node))
    free = [int(count) for count in tables.node_devices]
    counts = [[0] * len(free) for _ in grouping]
    speed = [0.0] * len(grouping)

    def give(group: int, number: int) -> bool:
        """Hand the fastest free node's devices over, at most ``number``; False if none is left."""
        node = next((node for node in nodes if free[node]), None)
        if node is None:
            return False
        taken = min(number, free[node])
        free[node] -= taken
        counts[group][node] += taken
        speed[group] += taken * float(tables.type_flops[tables.node_type[node]])
        return True

    for group in sorted(range(len(grouping)), key=lambda each: -load[each]):
        number = 1  # doubled each time, so that tensor groups form
        while not _fits(context, grouping[group], counts[group]):
            if not give(group, number):
                return None
            number = sum(counts[group])
    while give(max(range(len(grouping)), key=lambda each: load[each] / speed[each]), 1):
        pass
    assignment = as_assignment(counts)
    return Candidate(grouping=grouping, assignment=assignment, cost=context.steps.cost(grouping, assignment, math.inf))


def _fits(context: SearchContext, group: tuple[int, ...], counts: list[int]) -> bool:
    key = np.array(counts, dtype=np.int32).tobytes()
    return any(counts) and context.steps.group(group, key) is not None
