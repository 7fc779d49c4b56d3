"""Layers and shares on placed plans."""

from __future__ import annotations

import math
from itertools import islice

import pytest

from benchmarks.random_plans import random_assignments
from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel
from hetrl.cost.pipeline import one_f_one_b_seconds
from hetrl.cost.unit import UnitCosts
from hetrl.search.constraints import NodeRules
from hetrl.search.context import Candidate, SearchContext
from hetrl.search.level5_placement import place
from hetrl.search.level5_refine import fastest_layers, refined
from hetrl.spec.presets import benchmark_instance
from hetrl_kernels.layer_times import replica_seconds


def context_of(name: str) -> SearchContext:
    job = benchmark_instance(name)
    return SearchContext(job, UnitCosts(CostModel.builtin(), job.precision))


def test_layers_go_to_the_stage_that_is_three_times_as_fast() -> None:
    assert fastest_layers((4, 4), lambda layers: max(layers[0] * 1.0, layers[1] * 3.0)) == (6, 2)
    assert fastest_layers((1, 1), lambda layers: max(layers)) == (1, 1)


@pytest.mark.parametrize("slow", [1.0, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("num_micro_batches", [1, 3, 20])
def test_two_stages_equal_enumeration(slow: float, num_micro_batches: int) -> None:
    def seconds(layers: tuple[int, ...]) -> float:
        forward = [layers[0] * 1.0, layers[1] * slow + 0.5]
        return one_f_one_b_seconds(forward, [2 * each for each in forward], [0.3], num_micro_batches)

    best = min(seconds((first, 12 - first)) for first in range(1, 12))
    assert seconds(fastest_layers((6, 6), seconds)) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("name", ["guide20", "paper64_lan/PPO"])
def test_training_and_scoring_never_get_slower(name: str) -> None:
    context = context_of(name)
    rules = NodeRules(context)
    changed = 0
    for grouping, assignment in islice(random_assignments(context, 3), 12):
        cost = context.steps.cost(grouping, assignment, math.inf)
        candidate = Candidate(grouping=grouping, assignment=assignment, cost=cost)
        if not candidate.feasible:
            continue
        plan = place(rules, candidate, exact_shares=False)
        before = evaluate(context.job, plan, context.costs)
        for split_layers in (True, False):
            other = refined(rules, plan, split_layers=split_layers)
            changed += other != plan
            after = evaluate(context.job, other, context.costs)
            for task in context.job.workflow.tasks:
                mine, theirs = other.task(task.name), plan.task(task.name)
                assert mine.num_prompts == theirs.num_prompts
                assert mine.devices == theirs.devices
                layers = {sum(stage.num_layers for stage in replica.stages) for replica in mine.replicas}
                assert layers == {task.model.num_layers}
                if task.kind == "score":
                    limit = before.tasks[task.name].compute_seconds * (1 + 1e-12)
                    assert after.tasks[task.name].compute_seconds <= limit
    assert changed > 0


def test_bad_stages_are_refused() -> None:
    context = context_of("guide20")
    tables = context.kernel_tables
    task = next(index for index, task in enumerate(context.job.workflow.tasks) if task.kind == "score")
    layers = context.job.workflow.tasks[task].model.num_layers
    assert replica_seconds(tables, task, 0, 1, 0, 1, False, (0,), (layers,), 8) > 0
    for nodes, split in (((0, 1), (layers,)), ((0,), (layers + 1,)), ((0, 1), (layers, 0)), ((0,) * 65, (1,) * 65)):
        with pytest.raises(ValueError):
            replica_seconds(tables, task, 0, 1, 0, 1, False, nodes, split, 8)
    with pytest.raises(IndexError):
        replica_seconds(tables, task, 0, 1, 0, 1, False, (99,), (layers,), 8)
