"""Level 5: device ids. Groups take consecutive devices of each node; shares are rebalanced exactly.

Tensor groups already sit inside nodes, pipelines chain neighbouring groups, and gradient rings visit nodes in order,
so that every ring leaves a node once. What is left is to name the devices and to fit the shares to the final layout.
"""

from __future__ import annotations

import numpy as np

from hetrl.plan.plan import Group, Plan, TaskPlan
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


def place(
    context: SearchContext, candidate: Candidate, *, exact_shares: bool = True, swap_seed: int | None = None
) -> Plan:
    """Turn a feasible candidate into a plan on real, disjoint devices.

    Parameters
    ----------
    exact_shares
        Give replicas the shares that minimise the slowest one exactly, instead of those the search costed.
    swap_seed
        Anneal which tensor group plays which stage, with this seed; None leaves the order of levels 2 and 3.
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
            nodes = annealed_nodes(context, option, swap_seed) if swap_seed is not None else None
            tasks.append(task_plan(context, option, taken, shares, nodes))
        taken = [start + count for start, count in zip(taken, counts, strict=True)]
    return Plan(groups=tuple(groups), tasks=tuple(sorted(tasks, key=lambda plan: names.index(plan.task))))
