"""Lower bounds hold: for every option and every step that the kernels cost, on jobs of all kinds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.quality import study_job
from benchmarks.random_plans import random_assignments, random_options
from benchmarks.search import small_job
from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.search.bounds import dollar_bound, lower_bound
from hetrl.search.bounds.fluid import phase_bounds
from hetrl.search.bounds.problem import BOUNDS, BoxSearch, TaskBounds
from hetrl.search.bounds.training import training_tables
from hetrl.search.context import INFEASIBLE_COST, MAX_DEVICE_TYPES, SearchContext
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values
from hetrl.spec.presets import benchmark_instance
from hetrl_kernels.training_bound import TrainingBound
from tests.helpers.jobs import two_nodes, workflow_job
from tests.reference.training_bound import TrainingReference

ROUNDING = 1e-9
SETTING_ARRAYS = ("setting_degree", "setting", "speed", "by_layer", "head", "fastest", "quickest")


def context_of(job: Job) -> SearchContext:
    return SearchContext(job, UnitCosts(CostModel.builtin(), job.precision))


def mixed_job(**overrides: object) -> Job:
    """Four types in five nodes of different sizes."""
    nodes = [
        {"id": f"n{number}", "gpus": count, "type": kind, "interconnect": "PCIe-Gen4", "network": network}
        for number, (count, kind, network) in enumerate(
            [
                (4, "H100", "400Gbps"),
                (2, "A100-40GB", "100Gbps"),
                (8, "L40S", "10Gbps"),
                (3, "L4", "25Gbps"),
                (4, "H100", "400Gbps"),
            ]
        )
    ]
    values = {
        "workflow": {
            "algorithm": "PPO",
            "actor_model": "Qwen2.5-7B",
            "critic_model": "Qwen2.5-1.5B",
            "reward_model": "Qwen2.5-1.5B",
            "reference_model": "Qwen2.5-7B",
        },
        "cluster_topology": {"nodes": nodes},
        "batch": {"num_prompts": 50},
    }
    return job_from_values(values, source="mixed", overrides=overrides)


JOBS = {
    "two nodes": two_nodes,
    "LoRA": lambda: two_nodes({"precision.lora_rank": 16}),
    "several epochs": lambda: two_nodes({"batch.num_epochs": 3, "batch.num_mini_batches": 2}),
    "asynchronous": lambda: two_nodes({"workflow.staleness": 2}),
    "DPO": lambda: workflow_job("DPO"),
    "ReMax": lambda: workflow_job("ReMax"),
    "several rewards": lambda: workflow_job("multi-reward"),
    "mixture of experts": lambda: workflow_job(
        "GRPO", actor_model="Qwen/Qwen3-30B-A3B", reference_model="Qwen/Qwen3-30B-A3B"
    ),
    "four types": mixed_job,
    "small 3": lambda: small_job(3),
    "small 8": lambda: small_job(8),
    "guideA": lambda: benchmark_instance("guideA/Llama-3-8B/PPO"),
    "guideA 70B": lambda: benchmark_instance("guideA/Llama-3-70B/DPO"),
    "guide20": lambda: benchmark_instance("guide20"),
    "regions": lambda: study_job("mixed32-wan/PPO"),
    "three types": lambda: study_job("mixed48-lan/GRPO"),
}


@pytest.mark.parametrize("name", JOBS)
def test_no_option_undercuts_its_tasks_bound(name: str) -> None:
    context = context_of(JOBS[name]())
    job, tables = context.job, context.tables
    options = list(islice(random_options(context, 11), 150))
    checked = 0
    for index, task in enumerate(job.workflow.tasks):
        mine = [option for option in options if option.task == index]
        if not mine:
            continue
        points = np.zeros((len(mine), len(tables.type_flops)), dtype=np.int64)
        for row, option in enumerate(mine):
            for stages in option.stages():
                for node, _ in stages:
                    points[row, tables.node_type[node]] += option.degree
        bound = BOUNDS[task.kind](job, tables, index)
        for option, least in zip(mine, map(bound, points), strict=True):
            assert least <= option.seconds * (1 + ROUNDING), (
                task.name,
                option.degree,
                option.stages(),
                option.micro_batch,
            )
        checked += len(mine)
    assert checked > 20


@pytest.mark.parametrize("name", JOBS)
def test_no_fastest_option_undercuts_its_tasks_bound(name: str) -> None:
    """Bounds are close to the fastest options that level 2 finds on random parts of the fleet, not to random ones."""
    context = context_of(JOBS[name]())
    job, tables, rng = context.job, context.tables, np.random.default_rng(3)
    for index, task in enumerate(job.workflow.tasks):
        bound = BOUNDS[task.kind](job, tables, index)
        fleets = [np.ones(len(tables.node_devices)), *rng.random((5, len(tables.node_devices)))]
        for part in fleets:
            counts = np.floor(part * tables.node_devices + 0.5).astype(np.int32)
            points = np.zeros(len(tables.type_flops), dtype=np.int64)
            np.add.at(points, tables.node_type, counts)
            least = bound(points)
            for option in context.steps.alone(index, context.counts(counts)):
                assert least <= option.seconds * (1 + ROUNDING), (task.name, option.degree, option.stages())


@pytest.mark.parametrize("name", JOBS)
def test_no_step_undercuts_the_bound(name: str) -> None:
    context = context_of(JOBS[name]())
    bound = lower_bound(context.job, context.tables, context.fluid)
    assert bound > 0
    feasible = 0
    for grouping, assignment in islice(random_assignments(context, 5), 30):
        cost = context.steps.cost(grouping, assignment, float("inf"))
        if cost < INFEASIBLE_COST:
            feasible += 1
            assert bound <= cost * (1 + ROUNDING)
    assert feasible > 0


@pytest.mark.parametrize("name", JOBS)
def test_no_step_is_cheaper_than_the_bound_in_dollars(name: str) -> None:
    job = JOBS[name]()
    prices = {"H100": 6.88, "A100-40GB": 2.7, "L40S": 1.9, "L4": 0.8}
    nodes = [  # unequal nodes of one type cost unequal sums
        replace(node, usd_per_hour=(1 + 0.1 * number) * prices.get(node.device_type.name, 1.0) * node.num_devices)
        for number, node in enumerate(job.topology.nodes)
    ]
    optimizer = replace(job.optimizer, objective="usd_per_step")
    job = replace(job, topology=replace(job.topology, nodes=tuple(nodes)), optimizer=optimizer)
    context = context_of(job)
    bound = dollar_bound(context.tables, context.fluid, lower_bound(job, context.tables, context.fluid))
    assert bound > 0
    feasible = 0
    for grouping, assignment in islice(random_assignments(context, 5), 30):
        cost = context.steps.cost(grouping, assignment, float("inf"))
        if cost < INFEASIBLE_COST:
            feasible += 1
            assert bound <= cost * (1 + ROUNDING)
    assert feasible > 0


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 30))
def test_more_devices_never_raise_a_tasks_bound(seed: int) -> None:
    context = context_of(small_job(seed))
    tables = context.tables
    counts = np.zeros(len(tables.type_flops), dtype=np.int64)
    np.add.at(counts, tables.node_type, tables.node_devices)
    shape = tuple((counts + 1).tolist())
    points = np.stack([each.ravel() for each in np.indices(shape)], axis=1)
    for index, task in enumerate(context.job.workflow.tasks):
        raw = np.array(list(map(BOUNDS[task.kind](context.job, tables, index), points))).reshape(shape)
        for axis in range(raw.ndim):
            assert (np.diff(np.where(np.isfinite(raw), raw, 1e30), axis=axis) <= 1e-9 * np.abs(raw).min()).all()


@pytest.mark.parametrize("name", ["two nodes", "small 3", "small 8"])
def test_boxes_are_cut_until_the_bound_is_that_of_the_best_device_counts(name: str) -> None:
    """Branch and bound against all ways to give the devices of every type to the groups of every grouping."""
    context = context_of(JOBS[name]())
    floors = phase_bounds(context.job, context.tables, context.fluid)
    search = BoxSearch(context.job, context.tables, context.fluid, floors)
    best = float("inf")
    for grouping in search.groupings:
        ways = [list(_splits(int(number), len(grouping))) for number in search.devices]
        for split in product(*ways):
            counts = np.array(split, dtype=np.int64).T.copy()
            found = [
                {task: search.tasks.seconds(task, mine) for task in tasks}
                for tasks, mine in zip(grouping, counts, strict=True)
            ]
            best = min(best, search.step(found))
    assert search.run() == pytest.approx(best, rel=1e-12)


def _splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _splits(total - first, parts - 1):
            yield (first, *rest)


def test_a_slower_network_never_lowers_the_bound_of_forced_rings() -> None:
    def bound(network: str) -> float:
        values = {"cluster_topology.network": {"zone": {"bandwidth": network, "latency": "50us"}}}
        context = context_of(two_nodes(values))
        return lower_bound(context.job, context.tables, context.fluid)

    assert bound("1Gbps") >= bound("100Gbps")


def test_as_many_device_types_as_a_search_may_have_are_bounded_as_a_fleet() -> None:
    """Compositions of engines would be thousands: the bound is that of the whole fleet, and holds."""
    kinds = {
        f"kind-{number}": {"flops": {"bf16": f"{100 + number}TFLOPS"}, "memory": "80GB", "memory_bandwidth": "2TB/s"}
        for number in range(MAX_DEVICE_TYPES)
    }
    nodes = [{"id": f"node-{kind}", "gpus": 1, "type": kind, "interconnect": "50GB/s"} for kind in kinds]
    model = "Qwen2.5-0.5B"
    values = {
        "workflow": {"algorithm": "GRPO", "actor_model": model, "reference_model": model},
        "cluster_topology": {"nodes": nodes},
        "device_types": kinds,
    }
    context = context_of(job_from_values(values, source="64 types"))
    bound = lower_bound(context.job, context.tables, context.fluid)
    assert bound == sum(phase_bounds(context.job, context.tables, context.fluid))
    tasks = tuple(range(len(context.job.workflow.tasks)))
    assert 0 < bound <= context.steps.cost((tasks,), (context.all_devices,), math.inf) < INFEASIBLE_COST


def test_one_device_of_one_type_is_bounded_tightly() -> None:
    """One pipeline stage, one replica: the bound is the time itself, up to the head's and the optimizer's parts."""
    job = job_from_values(
        {
            "workflow": {
                "algorithm": "DPO",
                "actor_model": "Qwen2.5-0.5B",
                "reference_model": "Qwen2.5-0.5B",
                "online": False,
            },
            "cluster_topology": {"nodes": [{"id": "one", "gpus": 1, "type": "H100", "interconnect": "PCIe-Gen4"}]},
            "batch": {"num_prompts": 16, "max_response_tokens": 512},
        },
        source="one device",
    )
    context = context_of(job)
    tasks = TaskBounds(job, context.tables, context.fluid)
    bound = [tasks.seconds(index, np.array([1])) for index in range(len(job.workflow.tasks))]
    for index in range(len(job.workflow.tasks)):
        fastest = context.steps.alone(index, context.all_devices)[0]
        assert bound[index] <= fastest.seconds * (1 + ROUNDING)
        assert bound[index] >= fastest.seconds * 0.999


@pytest.mark.parametrize("name", ["two nodes", "LoRA", "mixture of experts", "small 3", "small 8", "guideA", "regions"])
def test_the_training_kernel_equals_its_reference(name: str) -> None:
    """The kernel leaves out what cannot be the least; the reference walks every class to the end."""
    context = context_of(JOBS[name]())
    tables, rng = context.tables, np.random.default_rng(5)
    devices = np.zeros(len(tables.type_flops), dtype=np.int64)
    np.add.at(devices, tables.node_type, tables.node_devices)
    most, finite = np.minimum(devices, 4), 0
    for index, task in enumerate(context.job.workflow.tasks):
        if task.kind == "train":
            lowered = training_tables(context.job, tables, index)
            for q in rng.permutation(len(lowered.setting))[:3]:
                one = lowered._replace(
                    **{name: getattr(lowered, name)[q : q + 1] for name in SETTING_ARRAYS},
                    pipelines=np.sort(rng.permutation(lowered.pipelines[:5])[:2]),
                )
                kernel, reference = TrainingBound(one), TrainingReference(one)
                for counts in [most, rng.integers(0, most + 1)]:
                    assert kernel.seconds(counts) == pytest.approx(reference.seconds(counts.tolist()), rel=1e-9)
                    finite += np.isfinite(kernel.seconds(counts))
    assert finite
