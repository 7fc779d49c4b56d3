"""Simpler planners give plans that fit, and pinned levels are pinned."""

from __future__ import annotations

import pytest

from benchmarks.quality import study_job, study_names, summary
from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.plan.rules import plan_problems
from hetrl.search.baselines.greedy import greedy
from hetrl.search.baselines.pinned import LEVELS_OFF
from hetrl.search.baselines.restarts import random_restarts
from hetrl.search.context import SearchContext
from hetrl.search.level4_assignment import node_moves
from tests.helpers.jobs import two_nodes


@pytest.mark.parametrize("level", LEVELS_OFF)
def test_a_level_off_still_plans(level: str) -> None:
    job = two_nodes({"optimizer.budget": 200})
    costs = UnitCosts(CostModel.builtin(), job.precision)
    plan = LEVELS_OFF[level](job, costs)
    assert evaluate(job, plan, costs).feasible
    assert plan_problems(job, plan) == []
    if level == "one_group":
        assert len(plan.groups) == 1
    if level == "all_separate":
        assert all(len(group.tasks) == 1 for group in plan.groups)
    if level == "one_tensor_degree":
        assert {len(s.devices) for task in plan.tasks for r in task.replicas for s in r.stages} == {4}
    if level == "all_resident":
        assert {task.residency.optimizer_states for task in plan.tasks} == {"device"}


def test_greedy_gives_the_heaviest_task_the_fastest_devices() -> None:
    job = two_nodes()
    context = SearchContext(job, UnitCosts(CostModel.builtin(), job.precision))
    candidate = greedy(context)
    assert candidate is not None
    assert candidate.feasible
    train = next(
        n for n, group in enumerate(candidate.grouping) if any(job.workflow.tasks[t].kind == "train" for t in group)
    )
    counts = memoryview(candidate.assignment[train]).cast("i")
    assert counts[0] > 0


def test_more_random_draws_are_never_worse() -> None:
    job = two_nodes()
    context = SearchContext(job, UnitCosts(CostModel.builtin(), job.precision))
    few, many = (random_restarts(context, num_draws=number, seed=3) for number in (5, 60))
    assert few is not None
    assert many is not None
    assert many.cost <= few.cost


def test_node_moves_of_two_nodes_and_two_groups() -> None:
    context = SearchContext(two_nodes(), UnitCosts(CostModel.builtin(), two_nodes().precision))
    start = (context.counts([4, 0]), context.counts([0, 4]))
    # neither group may end up empty, so all that is left is to swap
    assert set(node_moves(context, start)) == {(start[1], start[0])}
    mixed = (context.counts([2, 4]), context.counts([2, 0]))
    assert (context.counts([0, 4]), context.counts([4, 0])) in set(node_moves(context, mixed))


def test_the_study_has_thirty_instances_of_16_to_256_devices() -> None:
    sizes = {name: study_job(name).topology.num_devices for name in study_names()}
    assert len(sizes) >= 30
    assert min(sizes.values()) >= 16
    assert max(sizes.values()) == 256


def test_summary_counts_what_was_better() -> None:
    row = {"name": "a", "step_seconds": 2.0, "longer": [1.98, 2.1], "cpu_seconds": 1.0, "commit": "x"}
    found = summary(
        [row | {"others": {"greedy": 1.0}}, row | {"name": "b", "longer": [1.0], "others": {"greedy": None}}]
    )
    assert found["within_1_percent"] == 0
    assert found["worst_excess_percent"] == pytest.approx(100.0)
    assert found["better_than_the_search"] == {"greedy": ["a"]}
    assert found["infeasible"] == {"greedy": 1}
