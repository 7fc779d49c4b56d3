"""Annealing of whole plans: cost by delta against a new state and against the readable evaluator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.random_plans import random_assignments, relative
from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.plan.plan import Group, Plan, Replica, Stage, TaskPlan
from hetrl.plan.rules import plan_problems
from hetrl.search.constraints import NodeRules
from hetrl.search.context import Candidate, SearchContext
from hetrl.search.level5_placement import place
from hetrl.search.level5_polish import lowered, polish
from hetrl.search.plan_arrays import PlanArrays, moved_plan, plan_arrays
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values
from hetrl.spec.presets import benchmark_instance
from hetrl_kernels.pipelines import training_pipeline
from hetrl_kernels.plan_anneal import PlanAnnealer

INSTANCES = ("guide20", "guideB/Llama-3-8B/PPO", "guideC/Qwen2.5-72B/DPO", "paper64_wan/PPO", "paper64_lan/GRPO")


def context_of(job: Job) -> SearchContext:
    return SearchContext(job, UnitCosts(CostModel.builtin(), job.precision))


def feasible_plans(context: SearchContext, seed: int, *, tries: int = 40) -> Iterator[Plan]:
    rules = NodeRules(context)
    for grouping, assignment in islice(random_assignments(context, seed), tries):
        cost = context.steps.cost(grouping, assignment, math.inf)
        candidate = Candidate(grouping=grouping, assignment=assignment, cost=cost)
        if candidate.feasible:
            yield place(rules, candidate, exact_shares=bool(seed % 2))


def anew(context: SearchContext, arrays: PlanArrays, annealer: PlanAnnealer) -> float:
    """Seconds of a state that is built with the blocks where they are now."""
    nodes = np.array(annealer.nodes(), dtype=np.int32)
    return PlanAnnealer(context.links, arrays._replace(block_node=nodes), annealer.scale).seconds


ENDLESS = 250
"""Steps so many times as long as the first are infinite to the annealer, whose seconds are integers."""


def check(context: SearchContext, plan: Plan, seed: int, rounds: int) -> list[float]:
    """Wander, and compare delta, new state and evaluator after each round; the seconds seen."""
    arrays = plan_arrays(context, plan)
    assert arrays is not None
    annealer = PlanAnnealer(context.links, arrays)
    first = annealer.seconds
    seen = []
    for turn in range(rounds):
        seconds = annealer.seconds
        moved = moved_plan(context, plan, arrays, annealer.nodes())
        estimate = evaluate(context.job, moved, context.costs)
        assert seconds == anew(context, arrays, annealer)
        endless = estimate.feasible and estimate.step_seconds > ENDLESS * first
        assert math.isinf(seconds) == (not estimate.feasible) or endless, estimate.problems
        if math.isfinite(seconds):
            assert relative(seconds, estimate.step_seconds) <= 1e-12
        assert not plan_problems(context.job, moved)
        assert [len(group.devices) for group in moved.groups] == [len(group.devices) for group in plan.groups]
        seen.append(seconds)
        annealer.wander(seed + turn, 40, feasible=math.isfinite(seconds) and turn < rounds - 2)
    return seen


@pytest.mark.parametrize("name", INSTANCES)
def test_delta_equals_a_new_state_and_the_evaluator(name: str) -> None:
    context = context_of(benchmark_instance(name))
    seen = [seconds for plan in islice(feasible_plans(context, 3), 8) for seconds in check(context, plan, 1, 6)]
    assert len({seconds for seconds in seen if math.isfinite(seconds)}) > 5
    assert all(seconds > 0 for seconds in seen)


def test_gradient_rings_of_many_members() -> None:
    """Rings of more than 16 members are kept as counts, smaller ones are read node by node."""
    nodes = [
        {
            "id": f"node-{number}",
            "gpus": 8,
            "type": kind,
            "interconnect": "PCIe-Gen4",
            "network": "100Gbps",
            "rack": rack,
        }
        for number, (kind, rack) in enumerate([("H100", "a"), ("L4", "a"), ("L4", "b"), ("L40S", "b"), ("L40S", "a")])
    ]
    model = "Qwen2.5-0.5B"
    values = {
        "workflow": {"algorithm": "GRPO", "actor_model": model, "reference_model": model, "reward_model": model},
        "cluster_topology": {"nodes": nodes, "network": {"rack": {"bandwidth": "50Gbps", "latency": "10us"}}},
        "batch": {"num_prompts": 256},
    }
    context = context_of(job_from_values(values, source="five nodes"))
    train = next(index for index, task in enumerate(context.job.workflow.tasks) if task.kind == "train")
    plans = [plan for plan in feasible_plans(context, 9, tries=60) if len(plan.tasks[train].replicas) > 16]
    seen = [seconds for plan in plans[:4] for seconds in check(context, plan, 3, 6)]
    assert len({seconds for seconds in seen if math.isfinite(seconds)}) > 5


@pytest.mark.parametrize("sizes", [(9, 8), (9, 8, 1), (8, 8, 8), (16, 16), (3, 7, 9, 1, 4), (12, 12, 12, 12)])
@pytest.mark.parametrize("replicas", [2, 16, 17, 24])
def test_unsharded_rings_over_nodes_of_unequal_sizes(sizes: tuple[int, ...], replicas: int) -> None:
    """Whatever the number of members per node is: equal, different, or different on one node only."""
    if replicas > sum(sizes):
        return
    nodes = [
        {"id": f"node-{number}", "gpus": size, "type": "H100", "interconnect": "PCIe-Gen4", "network": "1Gbps"}
        for number, size in enumerate(sizes)
    ]
    values = {
        "workflow": {
            "algorithm": "DPO",
            "actor_model": "Qwen2.5-0.5B",
            "reference_model": "Qwen2.5-0.5B",
            "online": False,
        },
        "cluster_topology": {"nodes": nodes},
        "batch": {"num_prompts": 48},
    }
    context = context_of(job_from_values(values, source="unequal nodes"))
    stage, devices = 24, tuple(range(replicas))
    scoring = TaskPlan(
        task="reference_score",
        replicas=(Replica(stages=(Stage(num_layers=stage, devices=(0,)),), num_prompts=48),),
        micro_batch_size=1,
    )
    training = TaskPlan(
        task="actor_train",
        replicas=tuple(
            Replica(
                stages=(Stage(num_layers=stage, devices=(device,)),),
                num_prompts=48 // replicas + (device < 48 % replicas),
            )
            for device in devices
        ),
        micro_batch_size=1,
    )
    plan = Plan(groups=(Group(tasks=("reference_score", "actor_train"), devices=devices),), tasks=(scoring, training))
    assert all(math.isfinite(seconds) for seconds in check(context, plan, 1, 4))


def test_the_period_of_an_asynchronous_job() -> None:
    context = context_of(benchmark_instance("paper64_lan/GRPO", {"workflow.staleness": 2}))
    assert context.job.staleness == 2
    seen = [seconds for plan in islice(feasible_plans(context, 4), 6) for seconds in check(context, plan, 2, 4)]
    assert any(math.isfinite(seconds) for seconds in seen)


SMALL_TYPES = ("H100", "A100-40GB", "L40S", "L4")


@st.composite
def small_jobs(draw: st.DrawFn) -> Job:
    """Two to four nodes of one to four devices, any algorithm, links of any speed."""
    nodes = [
        {
            "id": f"node-{number}",
            "gpus": draw(st.sampled_from([1, 2, 4])),
            "type": draw(st.sampled_from(SMALL_TYPES)),
            "interconnect": draw(st.sampled_from(["PCIe-Gen4", "NVLink-600G"])),
            "network": draw(st.sampled_from(["1Gbps", "10Gbps", "100Gbps"])),
            "rack": draw(st.sampled_from(["a", "b"])),
            "host_ram": draw(st.sampled_from(["60GiB", "1000GiB"])),
        }
        for number in range(draw(st.integers(2, 4)))
    ]
    model = draw(st.sampled_from(["Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-7B"]))
    algorithm = draw(st.sampled_from(["PPO", "GRPO", "DPO", "ReMax"]))
    workflow: dict[str, object] = {"algorithm": algorithm, "actor_model": model, "reference_model": model}
    if algorithm == "PPO":
        workflow |= {"critic_model": "Qwen2.5-0.5B", "reward_model": "Qwen2.5-1.5B"}
    if algorithm == "DPO":
        workflow["online"] = False
    batch = {"num_prompts": draw(st.sampled_from([7, 32, 64])), "max_response_tokens": 512}
    network = {"rack": {"bandwidth": "50Gbps", "latency": "10us"}}
    return job_from_values(
        {"workflow": workflow, "cluster_topology": {"nodes": nodes, "network": network}, "batch": batch},
        source="small",
    )


@settings(max_examples=25, deadline=None)
@given(job=small_jobs(), seed=st.integers(0, 1000))
def test_small_fleets_of_any_kind(job: Job, seed: int) -> None:
    context = context_of(job)
    for plan in islice(feasible_plans(context, seed, tries=8), 2):
        check(context, plan, seed, 4)


@pytest.mark.parametrize("hottest", [0.2, 0.02, 0.001])
@pytest.mark.parametrize(
    ("name", "staleness", "seed"),
    [
        ("paper64_wan/PPO", 0, 5),
        ("paper64_lan/GRPO", 0, 12),
        ("paper64_wan/GRPO", 2, 10),
        ("guide20", 0, 10),
        ("guide20", 0, 11),
        ("synthetic1024", 0, 10),
    ],
)
def test_early_rejection_leaves_the_trajectory_as_it_is(name: str, staleness: int, seed: int, hottest: float) -> None:
    """Also where bounds of long pipelines, or of replicas that became faster, are all that was asked for."""
    context = context_of(benchmark_instance(name, {"workflow.staleness": staleness}))
    for plan in islice(feasible_plans(context, seed, tries=15), 3):
        arrays = plan_arrays(context, plan)
        assert arrays is not None
        ended = []
        for early in (True, False):
            annealer = PlanAnnealer(context.links, arrays)
            counters = annealer.anneal(7 * (seed % 10) + 1, 3000, hottest, hottest / 40, early=early)
            assert sum(counters[:4]) == 3000
            ended.append((annealer.nodes(), annealer.seconds, counters[0], counters[4]))
            assert annealer.seconds == anew(context, arrays, annealer)
            assert counters[2] == 0 or early
        assert ended[0] == ended[1]


def test_annealing_is_never_worse_and_keeps_groups_apart_on_request() -> None:
    context = context_of(benchmark_instance("paper64_wan/PPO"))
    better = 0
    for plan in islice(feasible_plans(context, 6), 4):
        arrays = plan_arrays(context, plan)
        assert arrays is not None
        before = evaluate(context.job, plan, context.costs).step_seconds
        start = lowered(context, plan)
        assert start is not None
        polished = polish(NodeRules(context), start, 1, 3000)
        after = evaluate(context.job, polished.plan, context.costs).step_seconds
        assert after <= before
        assert polished.seconds == pytest.approx(after, rel=1e-12)
        better += after < before
        annealer = PlanAnnealer(context.links, arrays)
        annealer.anneal(1, 3000, 0.02, 0.0005, between_groups=False)
        moved = moved_plan(context, plan, arrays, annealer.nodes())
        for mine, theirs in zip(plan.groups, moved.groups, strict=True):
            assert context.device_counts(mine.devices) == context.device_counts(theirs.devices)
    assert better > 0


def test_one_chain_per_seed() -> None:
    context = context_of(benchmark_instance("guide20"))
    plan = next(feasible_plans(context, 7))
    arrays = plan_arrays(context, plan)
    assert arrays is not None
    runs = []
    for seed in (1, 1, 2):
        annealer = PlanAnnealer(context.links, arrays)
        runs.append((annealer.wander(seed, 200), annealer.nodes()))
    assert runs[0] == runs[1] != runs[2]


def test_plans_on_very_large_nodes_are_left_alone() -> None:
    """Members of a gradient ring on a node are counted in seven bits."""
    model = "Qwen2.5-0.5B"
    for devices, covered in ((127, True), (128, False)):
        nodes = [{"id": name, "gpus": devices, "type": "H100", "interconnect": "PCIe-Gen4"} for name in "ab"]
        values = {
            "workflow": {"algorithm": "DPO", "actor_model": model, "reference_model": model, "online": False},
            "cluster_topology": {"nodes": nodes},
        }
        context = context_of(job_from_values(values, source="two large nodes"))
        plans = list(islice(feasible_plans(context, 1), 4))
        assert {plan_arrays(context, plan) is not None for plan in plans} == {covered}
        if covered:
            assert any(math.isfinite(seconds) for plan in plans for seconds in check(context, plan, 1, 3))


def test_plans_outside_the_kernel_are_left_alone() -> None:
    """A tensor group over two nodes of one host; micro-batches that the tables do not list."""
    node = {"gpus": 1, "type": "H100", "interconnect": "PCIe-Gen4", "host": "one"}
    values = {
        "workflow": {
            "algorithm": "DPO", "actor_model": "Qwen2.5-0.5B", "reference_model": "Qwen2.5-0.5B", "online": False,
        },
        "cluster_topology": {"nodes": [{"id": name, **node} for name in "ab"]},
    }  # fmt: skip
    context = context_of(job_from_values(values, source="two parts of one host"))
    plan = next(feasible_plans(context, 1))
    task = plan.tasks[0]
    stage = Stage(num_layers=24, devices=(0, 1))
    spanning = replace(task, replicas=(Replica(stages=(stage,), num_prompts=task.num_prompts),))
    groups = (Group(tasks=tuple(each.task for each in plan.tasks), devices=(0, 1)),)
    assert plan_arrays(context, plan) is not None
    assert plan_arrays(context, Plan(groups=groups, tasks=(spanning, *plan.tasks[1:]))) is None
    assert plan_arrays(context, Plan(groups=groups, tasks=(replace(task, micro_batch_size=3), *plan.tasks[1:]))) is None


times = st.floats(0.0, 1.0) | st.sampled_from([0.125, 0.25, 0.5, 1.0])


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[list[float], list[float], list[float], int]:
    stages = draw(st.integers(1, 12))
    slowest_send = draw(st.sampled_from([0.0, 0.01, 1.0, 20.0]))
    forward = draw(st.lists(times, min_size=stages, max_size=stages))
    backward = draw(st.lists(times, min_size=stages, max_size=stages))
    send = draw(st.lists(times, min_size=stages - 1, max_size=stages - 1))
    return forward, backward, [slowest_send * each for each in send], draw(st.integers(1, 40))


@settings(max_examples=400, deadline=None)
@given(pipelines())
def test_bounds_of_a_training_pipeline(pipeline: tuple[list[float], list[float], list[float], int]) -> None:
    low, exact, high = training_pipeline(*pipeline)
    assert low * (1 - 1e-13) <= exact <= high * (1 + 1e-13)


def test_bounds_meet_where_the_last_stage_decides() -> None:
    # ten micro-batches reach the last stage after 1 + 1 seconds, keep it busy for 10 * (2 + 4), and go back in 2 + 2
    low, exact, high = training_pipeline([1.0, 1.0, 2.0], [2.0, 2.0, 4.0], [0.0, 0.0], 10)
    assert low == exact == high == 2 + 10 * 6 + 4


def test_bounds_where_links_decide() -> None:
    # two micro-batches are under way, a round trip takes 3 + 3 and two sends of 4; the second one's first backward runs
    # from 15 to 17, and the fifth pair's four round trips later
    low, exact, high = training_pipeline([1.0, 1.0], [2.0, 2.0], [4.0], 10)
    assert exact == 17 + 4 * 14
    assert low == 3 + 8 + 10 * 3  # the last stage's own work, after the first send and before the last
    assert high == 2 * 3 + 2 * 4 + 9 * (3 + 4)  # once there and back, then a stay beside the link nine times
