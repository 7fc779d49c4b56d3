"""The hybrid search with one level switched off: held at what one would choose without searching it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType

from hetrl.cost.tables import TASK_KINDS, TENSOR_DEGREES
from hetrl.cost.unit import UnitCosts
from hetrl.errors import InfeasibleError
from hetrl.plan.plan import Plan
from hetrl.search.chains import finish
from hetrl.search.constraints import NodeRules
from hetrl.search.context import Candidate, SearchContext
from hetrl.search.hybrid import solve
from hetrl.search.level2_parallelism import allowed_features, tensor_degree_allowed
from hetrl.search.level4_assignment import Starts
from hetrl.search.level5_placement import place
from hetrl.spec.job import Job
from hetrl.spec.model import Model

OFFLOADING = (5, 6, 7)
"""Columns of `allowed_features` that move state between phases."""


def one_group(job: Job, costs: UnitCosts) -> Plan:
    """Level 1 off: all tasks share all devices."""
    together = (tuple(range(len(job.workflow.tasks))),)
    return solve(job, costs, context=SearchContext(job, costs, groupings=[together])).plan


def all_separate(job: Job, costs: UnitCosts) -> Plan:
    """Level 1 off: every task has its own devices."""
    apart = tuple((task,) for task in range(len(job.workflow.tasks)))
    return solve(job, costs, context=SearchContext(job, costs, groupings=[apart])).plan


def one_tensor_degree(job: Job, costs: UnitCosts) -> Plan:
    """Level 2 off: tensor parallelism over whole nodes, as wide as the smallest node and the model admit."""
    smallest = min(node.num_devices for node in job.topology.nodes)

    def widest(model: Model, degree: int) -> bool:
        possible = [each for each in TENSOR_DEGREES if each <= smallest and tensor_degree_allowed(model, each)]
        return degree == max(possible, default=1)

    return solve(job, costs, context=SearchContext(job, costs, tensor_allowed=widest)).plan


def all_resident(job: Job, costs: UnitCosts) -> Plan:
    """Level 3 off: nothing is offloaded, dropped or fetched between the phases of a group."""
    features = allowed_features(job)
    features[:, OFFLOADING] = 0
    assert len(features) == len(TASK_KINDS)
    return solve(job, costs, context=SearchContext(job, costs, features=features)).plan


def proportional_devices(job: Job, costs: UnitCosts) -> Plan:
    """Level 4 off: every grouping gets devices of each type in proportion to its load; the best grouping wins."""
    context = SearchContext(job, costs)
    starts = Starts(context, random.Random(job.optimizer.seed))
    best: Candidate | None = None
    for grouping in context.groupings:
        if len(grouping) > context.topology.num_devices:
            continue
        assignment = starts.proportional(grouping, 0.0)
        cost = context.steps.cost(grouping, assignment, best.cost if best is not None else math.inf)
        if best is None or cost < best.cost:
            best = Candidate(grouping=grouping, assignment=assignment, cost=cost)
    if best is None or not best.feasible:
        raise InfeasibleError("no grouping fits on proportional shares of the devices", [])
    return finish(NodeRules(context), best)[0]


def unplaced(job: Job, costs: UnitCosts) -> Plan:
    """Level 5 off: tasklets stay in canonical order and shares as the search costed them."""
    context = SearchContext(job, costs)
    result = solve(job, costs, context=context)
    assert result.candidate is not None  # without a warm start every plan comes from a candidate
    return place(NodeRules(context), result.candidate, exact_shares=False)


LEVELS_OFF: Mapping[str, Callable[[Job, UnitCosts], Plan]] = MappingProxyType(
    {
        "one_group": one_group,
        "all_separate": all_separate,
        "one_tensor_degree": one_tensor_degree,
        "all_resident": all_resident,
        "proportional_devices": proportional_devices,
        "unplaced": unplaced,
    }
)
"""Name -> planner; each may raise `InfeasibleError`."""
