"""Units of the search's work: leaving devices idle, exact shares, and the distance to proven optima."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from benchmarks.search import small_job
from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.search.chains import Descent, run_idling
from hetrl.search.constraints import NodeRules
from hetrl.search.context import Candidate, SearchContext
from hetrl.search.exact.solver import solve_exact
from hetrl.search.hybrid import solve
from hetrl.search.level4_assignment import as_assignment, idle_moves
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values

MOST_EXACT = 32
"""Devices of the largest fleet whose shares are exact wherever they are costed (`EXACT_FILL_DEVICES`)."""


def costs_of(job: Job) -> UnitCosts:
    return UnitCosts(CostModel.builtin(), job.precision)


def scoring_job(pairs: int = 1) -> Job:
    """Offline DPO of a small model on nodes with two H100, each beside one with a single L40S."""
    nodes = []
    for number in range(pairs):
        nodes += [
            {"id": f"fast-{number}", "gpus": 2, "type": "H100", "interconnect": "NVLink-900G", "network": "100Gbps"},
            {"id": f"slow-{number}", "gpus": 1, "type": "L40S", "interconnect": "PCIe-Gen4", "network": "100Gbps"},
        ]
    workflow = {"algorithm": "DPO", "actor_model": "Qwen2.5-1.5B", "reference_model": "Qwen2.5-1.5B", "online": False}
    batch = {"num_prompts": 48, "max_response_tokens": 512}
    return job_from_values(
        {"workflow": workflow, "cluster_topology": {"nodes": nodes}, "batch": batch}, source="scoring"
    )


def test_idle_moves_take_a_node_or_a_type_from_a_group_that_keeps_something() -> None:
    job = scoring_job()
    moved = [
        tuple(tuple(np.frombuffer(key, dtype=np.int32).tolist()) for key in each)
        for each in idle_moves(SearchContext(job, costs_of(job)), as_assignment([[2, 0], [0, 1]]))
    ]
    assert moved == []  # either group would be left with nothing
    moved = [
        tuple(tuple(np.frombuffer(key, dtype=np.int32).tolist()) for key in each)
        for each in idle_moves(SearchContext(job, costs_of(job)), as_assignment([[2, 1]]))
    ]
    assert set(moved) == {((0, 1), (2, 0)), ((2, 0), (0, 1))}


@pytest.mark.parametrize("seed", [0, 12, 24])
def test_idling_finds_the_best_nodes_to_leave_unused(seed: int) -> None:
    """Seed 12 has a node without which only the tasks fit: all devices together do not."""
    job = small_job(seed)
    context = SearchContext(job, costs_of(job))
    sizes = [node.num_devices for node in job.topology.nodes]
    together = tuple(range(len(job.workflow.tasks)))
    used = [as_assignment([each])[0] for each in product(*[(0, size) for size in sizes]) if any(each)]
    costs = [context.steps.cost((together,), (key,), math.inf) for key in used]
    whole = Candidate(grouping=(together,), assignment=(context.all_devices,), cost=math.inf)
    near, spent = run_idling(NodeRules(context), Descent(candidate=whole, num_moves=50, near_ratio=1.0 + 1e-9))
    assert near[0].cost == min(costs)
    assert near[0].cost < costs[-1]
    assert 0 < spent <= 50


@pytest.mark.parametrize("pairs", [1, 11])
def test_shares_are_exact_in_small_fleets_and_in_what_is_placed(pairs: int) -> None:
    """Else the search costs shares in proportion to the speeds, which the exact fill of a placed plan improves on."""
    job = scoring_job(pairs=pairs)
    context = SearchContext(job, costs_of(job))
    small = job.topology.num_devices <= MOST_EXACT
    assert small == (pairs == 1)
    better = 0
    for option in context.steps.alone(0, context.all_devices):
        exact = context.finder.exact_shares(option)
        assert sum(exact) == sum(option.shares()) == job.batch.num_prompts
        better += exact != option.shares()
    assert (better == 0) == small


@pytest.mark.parametrize("seed", [3, 13, 23, 36, 43, 47, 50])
def test_plans_of_small_fleets_are_within_one_percent_of_the_proven_optimum(seed: int) -> None:
    job = small_job(seed)
    proven = solve_exact(job, costs_of(job))
    assert proven.status == "optimal"
    assert solve(job, costs_of(job)).estimate.step_seconds <= 1.01 * proven.objective
