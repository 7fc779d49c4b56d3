"""Level 5: device ids. Groups take consecutive devices of each node; shares are rebalanced exactly.

Tensor groups already sit inside nodes, pipelines chain neighbouring groups, and gradient rings visit nodes in order,
so that every ring leaves a node once. What is left is to name the devices and to fit the shares to the final layout.
"""

from __future__ import annotations

import numpy as np

from hetrl.plan.plan import Group, Plan, TaskPlan
from hetrl.search.context import Candidate, SearchContext
from hetrl.search.level3_colocation import task_plan


def place(context: SearchContext, candidate: Candidate, *, exact_shares: bool = True) -> Plan:
    """Turn a feasible candidate into a plan on real, disjoint devices.

    Parameters
    ----------
    exact_shares
        Give replicas the shares that minimise the slowest one exactly, instead of those the search costed.
    """
    topology = context.topology
    names = [task.name for task in context.job.workflow.tasks]
    taken = [0] * len(context.nodes)
    groups: list[Group] = []
    tasks: list[TaskPlan] = []
    for members, key in zip(candidate.grouping, candidate.assignment, strict=True):
        counts = np.frombuffer(key, dtype=np.int32).tolist()
        devices = tuple(
            topology.first_device[node] + taken[node] + index for node in context.nodes for index in range(counts[node])
        )
        groups.append(Group(tasks=tuple(names[task] for task in members), devices=devices))
        choice = context.steps.group(members, key)
        assert choice is not None  # the candidate is feasible
        for option in choice.options:
            shares = context.finder.exact_shares(option) if exact_shares else option.shares()
            tasks.append(task_plan(context, option, taken, shares))
        taken = [start + count for start, count in zip(taken, counts, strict=True)]
    return Plan(groups=tuple(groups), tasks=tuple(sorted(tasks, key=lambda plan: names.index(plan.task))))
