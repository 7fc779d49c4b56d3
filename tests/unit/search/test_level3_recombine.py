"""Level 3 of the last candidates: the best combination there is for the step that results, the same in any lane."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.search.chains import finish
from hetrl.search.constraints import NodeRules
from hetrl.search.context import Candidate, SearchContext
from hetrl.search.crew import Alone
from hetrl.search.exact.solver import solve_exact
from hetrl.search.halving import RECOMBINED_TYPES, Effort, Halving
from hetrl.search.hybrid import solve
from hetrl.search.level3_recombine import choices_of, recombined
from hetrl.spec.load import job_from_values
from hetrl.spec.presets import benchmark_instance
from hetrl_kernels.exact_groups import GroupColumns
from hetrl_kernels.options import Option
from hetrl_kernels.recombine import recombine

TIGHT = "guideB/Llama-3-70B/PPO"
SHARED = 3


def context_of(name: str) -> SearchContext:
    job = benchmark_instance(name)
    return SearchContext(job, UnitCosts(CostModel.builtin(), job.precision))


def whole_fleet(context: SearchContext) -> Candidate:
    """All tasks in one group on all devices."""
    grouping = (tuple(range(len(context.job.workflow.tasks))),)
    assignment = (context.all_devices,)
    return Candidate(grouping=grouping, assignment=assignment, cost=context.steps.cost(grouping, assignment, math.inf))


def step_of(context: SearchContext, options: tuple[Option, ...], floors: np.ndarray) -> float:
    """Phases one after the other, each as long as the slower of options (with their own syncs) and floors."""
    loads = np.zeros(len(floors))
    by_task = {option.task: option for option in options}
    for task, option in by_task.items():
        loads[context.phase_of[task]] += option.seconds
        if task in context.trainers and option.weights != SHARED:
            loads[-1] += context.steps.weight_sync(by_task[context.trainers[task]], option)
    return float(np.maximum(loads, floors).sum())


@pytest.mark.parametrize(
    ("name", "share"), [("guide20", 0.0), ("guide20", 0.3), ("guide20", 0.6), ("guideC/Llama-3-8B/DPO", 0.3)]
)
def test_no_column_of_the_exact_solver_is_better(name: str, share: float) -> None:
    context = context_of(name)
    finder, counts = context.front_finder, context.all_devices
    tasks = tuple(range(len(context.job.workflow.tasks)))
    number = int(context.phase_of.max()) + 1
    alone = {task: context.steps.alone(task, counts)[0].seconds for task in tasks}
    limit = 1.02 * sum(alone.values())
    floors = np.zeros(number)
    floors[-1] = share * limit  # another group, which is busy in the last phase
    least = np.bincount(context.phase_of, list(alone.values()), minlength=number)
    limit = 1.02 * float(np.maximum(least, floors).sum())
    spare = limit - float(np.maximum(least, floors).sum()) + np.maximum(floors - least, 0.0)
    cutoffs = {task: min(alone[task] + spare[context.phase_of[task]], 1.2 * alone[task]) for task in tasks}
    fronts = {task: finder.front(task, counts, cutoffs[task]) for task in tasks}
    pairs = {
        (trainer, scorer): finder.shared_pairs(trainer, scorer, counts, cutoffs[trainer], cutoffs[scorer])
        for scorer, trainer in context.trainers.items()
        if context.job.workflow.tasks[scorer].kind == "score"
    }
    limits = np.concatenate([floors, np.zeros(number), [limit, math.inf]])[None]
    columns = GroupColumns(finder, tasks, counts, fronts, pairs, context.phase_of, limits, 20_000, math.inf)
    steps = [step_of(context, options, floors) for options in columns.run()]
    assert not columns.overflow
    found = recombine(finder, tasks, counts, fronts, pairs, context.phase_of, floors, limit, 1_000_000)
    assert steps and found is not None
    assert [option.task for option in found] == list(tasks)
    assert step_of(context, found, floors) == pytest.approx(min(steps), rel=1e-9)
    # nothing is shorter than what is shortest
    best = step_of(context, found, floors)
    assert (
        recombine(finder, tasks, counts, fronts, pairs, context.phase_of, floors, best * (1 - 1e-9), 1_000_000) is None
    )


def test_one_group_on_two_types_gets_the_plan_that_only_long_lists_hold() -> None:
    context = context_of(TIGHT)
    before = whole_fleet(context)
    after = recombined(context, before)
    assert after.recombined
    assert after.cost < 0.95 * before.cost  # a tenth less when this was written
    reward = next(option for option in choices_of(context, after)[0].options if option.task == 1)
    types = {context.topology.nodes[node].device_type.name for replica in reward.stages() for node, _ in replica}
    assert len(types) == 1  # the reward model leaves one type's memory to the engines
    plan, cost = finish(NodeRules(context), after)
    assert cost <= after.cost * (1 + 1e-12) and len(plan.groups) == 1


def test_options_are_the_same_where_they_were_not_kept() -> None:
    context = context_of(TIGHT)
    after = recombined(context, whole_fleet(context))
    elsewhere = context_of(TIGHT)
    assert finish(NodeRules(elsewhere), after) == finish(NodeRules(context), after)


def test_what_is_best_already_stays() -> None:
    context = context_of("guideC/Llama-3-8B/PPO")
    before = whole_fleet(context)
    once = recombined(context, before)
    assert once.cost <= before.cost
    assert recombined(context, replace(before, cost=once.cost)) == replace(before, cost=once.cost)


def test_lanes_give_the_same_plan_where_groups_are_combined_anew() -> None:
    job = benchmark_instance(TIGHT)
    costs = UnitCosts(CostModel.builtin(), job.precision)
    found = [solve(job, costs, threads=threads).plan for threads in (1, 2)]
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["guide20", pytest.param(TIGHT, marks=pytest.mark.slow)])
def test_search_reaches_the_proven_optimum(name: str) -> None:
    job = benchmark_instance(name)
    costs = UnitCosts(CostModel.builtin(), job.precision)
    found = solve(job, costs)
    optimum = solve_exact(job, costs, mip=None, warm_start=found.plan)
    assert optimum.status == "optimal" and optimum.objective is not None
    assert found.estimate.step_seconds <= optimum.objective * (1 + 1e-9)


def test_fleets_of_many_types_are_not_combined_anew() -> None:
    """Every option leaves another type alone, so that none replaces another: fronts would never end."""
    kinds = {
        f"kind-{number}": {"flops": {"bf16": f"{100 + number}TFLOPS"}, "memory": "80GB", "memory_bandwidth": "2TB/s"}
        for number in range(RECOMBINED_TYPES + 1)
    }
    model = "Qwen2.5-0.5B"
    workflow = {"algorithm": "DPO", "actor_model": model, "reference_model": model, "online": False}
    for number, combined in ((RECOMBINED_TYPES, True), (RECOMBINED_TYPES + 1, False)):
        nodes = [{"id": kind, "gpus": 1, "type": kind} for kind in list(kinds)[:number]]
        values = {"workflow": workflow, "cluster_topology": {"nodes": nodes}, "device_types": kinds}
        job = job_from_values(values, source="many types")
        context = SearchContext(job, UnitCosts(CostModel.builtin(), job.precision))
        rules = NodeRules(context)
        halving = Halving(
            crew=Alone(rules),
            rules=rules,
            rng=random.Random(0),
            deadline=math.inf,
            progress=None,
            effort=Effort.of_budget(20),
        )
        grouping, assignment = ((0, 1),), (context.all_devices,)
        cost = context.steps.cost(grouping, assignment, math.inf)
        candidate = Candidate(grouping=grouping, assignment=assignment, cost=cost)
        halving.recombined([candidate], [candidate])
        assert ((grouping, assignment) in context.recombined) == combined
