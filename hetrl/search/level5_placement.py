"""Level 5: device ids. Groups take consecutive devices of each node; shares are rebalanced exactly.

Tensor groups already sit inside nodes, pipelines chain neighbouring groups, and gradient rings visit nodes in order,
so that every ring leaves a node once. What is left is to name the devices and to fit the shares to the final layout.
"""

from __future__ import annotations

import numpy as np

from hetrl.plan.plan import Group, Plan, TaskPlan
from hetrl.search.constraints import NodeRules
from hetrl.search.context import Candidate, SearchContext
from hetrl.search.level3_colocation import task_plan
from hetrl_kernels.options import Option
from hetrl_kernels.placement import Placement

MOST_NODES = 64
"""Larger fleets are built of equal racks; there the order of nodes stays."""
NUM_MOVES = 4_000
START_TEMPERATURE, END_TEMPERATURE = 0.02, 0.0005


def annealed_nodes(context: SearchContext, option: Option, seed: int) -> list[int] | None:
    """Swap tensor groups between slots where links differ; None where there is nothing to gain."""
    nodes = sorted({node for stages in option.stages() for node, _ in stages})
    kinds = context.tables.node_type[nodes]
    if len(nodes) < 3 or len(np.unique(kinds)) == len(nodes) or len(context.nodes) > MOST_NODES:
        return None  # only nodes of one type change places
    links = context.tables.link_kind[np.ix_(nodes, nodes)][~np.eye(len(nodes), dtype=np.bool_)]
    if len(np.unique(links)) < 2:
        return None
    placement = Placement(context.finder, option)
    before = placement.seconds
    placement.anneal(seed, NUM_MOVES, START_TEMPERATURE, END_TEMPERATURE)
    return placement.nodes() if placement.seconds < before else None


def place(rules: NodeRules, candidate: Candidate, *, exact_shares: bool = True, swap_seed: int | None = None) -> Plan:
    """Turn a feasible candidate into a plan on real, disjoint devices.

    Parameters
    ----------
    rules
        With the layouts that stay on their devices.
    exact_shares
        Give replicas the shares that minimise the slowest one exactly, instead of those the search costed.
    swap_seed
        Anneal which tensor group plays which stage, with this seed; None leaves the order of levels 2 and 3.
    """
    context = rules.context
    names = [task.name for task in context.job.workflow.tasks]
    groups: list[Group] = []
    tasks: list[TaskPlan] = []
    owned = devices_of_groups(rules, candidate)
    for members, key, of_nodes in zip(candidate.grouping, candidate.assignment, owned, strict=True):
        if not members:
            continue  # devices that stay unused
        devices = tuple(device for ids in of_nodes for device in ids)
        groups.append(Group(tasks=tuple(names[task] for task in members), devices=devices))
        choice = context.steps.group(members, key)
        assert choice is not None  # the candidate is feasible
        for option in choice.options:
            shares = context.finder.exact_shares(option) if exact_shares else option.shares()
            if option.task in rules.kept:
                tasks.append(task_plan(context, option, of_nodes, shares, kept=rules.kept[option.task].plan))
                continue
            nodes = annealed_nodes(context, option, swap_seed) if swap_seed is not None else None
            tasks.append(task_plan(context, option, of_nodes, shares, nodes))
    return Plan(groups=tuple(groups), tasks=tuple(sorted(tasks, key=lambda plan: names.index(plan.task))))


def devices_of_groups(rules: NodeRules, candidate: Candidate) -> list[list[list[int]]]:
    """Device ids ``[group][node]``: first those that a kept layout holds, then the node's others in order."""
    topology = rules.context.topology
    held: list[set[int]] = [
        {device for task in tasks if task in rules.kept for device in rules.kept[task].plan.devices}
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
