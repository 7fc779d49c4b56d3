"""Level 5: device ids. Groups take consecutive devices of each node; shares are rebalanced exactly.

Tensor groups already sit inside nodes, pipelines chain neighbouring groups, and gradient rings visit nodes in order,
so that every ring leaves a node once. What is left is to name the devices and to fit the shares to the final layout;
`level5_polish` then moves blocks of devices where the whole step gains.
"""

from __future__ import annotations

import numpy as np

from hetrl.plan.plan import Group, Plan, TaskPlan
from hetrl.search.constraints import NodeRules
from hetrl.search.context import Candidate
from hetrl.search.level3_colocation import task_plan
from hetrl.search.level3_recombine import choices_of


def place(rules: NodeRules, candidate: Candidate, *, exact_shares: bool = True) -> Plan:
    """Turn a feasible candidate into a plan on real, disjoint devices.

    Parameters
    ----------
    rules
        With the layouts that stay on their devices.
    exact_shares
        Give replicas the shares that minimise the slowest one exactly, instead of those the search costed.
    """
    context = rules.context
    names = [task.name for task in context.job.workflow.tasks]
    groups: list[Group] = []
    tasks: list[TaskPlan] = []
    owned = devices_of_groups(rules, candidate)
    for members, choice, of_nodes in zip(candidate.grouping, choices_of(context, candidate), owned, strict=True):
        if not members:
            continue  # devices that stay unused
        devices = tuple(device for ids in of_nodes for device in ids)
        groups.append(Group(tasks=tuple(names[task] for task in members), devices=devices))
        for option in choice.options:
            shares = context.finder.exact_shares(option) if exact_shares else option.shares()
            tasks.append(task_plan(context, option, of_nodes, shares, kept=rules.kept.get(option.task)))
    return Plan(groups=tuple(groups), tasks=tuple(sorted(tasks, key=lambda plan: names.index(plan.task))))


def devices_of_groups(rules: NodeRules, candidate: Candidate) -> list[list[list[int]]]:
    """Device ids ``[group][node]``: first those that a kept layout holds, then the node's others in order."""
    topology = rules.context.topology
    held: list[set[int]] = [
        {device for task in tasks if task in rules.kept for device in rules.kept[task].devices}
        for tasks in candidate.grouping
    ]
    reserved = set().union(*held)
    counts = [np.frombuffer(key, dtype=np.int32).tolist() for key in candidate.assignment]
    owned: list[list[list[int]]] = [[] for _ in candidate.grouping]
    for node in rules.context.nodes:
        ids = topology.devices_of(node)
        others = iter([device for device in ids if device not in reserved])
        for mine, of_nodes, row in zip(held, owned, counts, strict=True):
            first = [device for device in ids if device in mine]
            of_nodes.append(sorted(first + [next(others) for _ in range(row[node] - len(first))]))
    return owned
