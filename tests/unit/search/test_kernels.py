"""The compiled kernels against the readable evaluator, term by term, on random plans."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from benchmarks.random_plans import option_error, random_assignments, random_options, step_error
from hetrl.cost.model import CostModel
from hetrl.cost.pipeline import one_f_one_b_seconds
from hetrl.cost.residency import trains_eagerly
from hetrl.cost.unit import UnitCosts
from hetrl.search.context import SearchContext
from hetrl.spec.load import job_from_values, load_job
from hetrl.spec.presets import benchmark_instance
from hetrl_kernels.layer_times import pipeline_seconds

INSTANCES = ("guide20", "guideB/Llama-3-8B/PPO", "guideC/Qwen2.5-72B/DPO", "paper64_wan/GRPO")


def context_of(name: str, **overrides: object) -> SearchContext:
    job = benchmark_instance(name, {key.replace("__", "."): value for key, value in overrides.items()})
    return SearchContext(job, UnitCosts(CostModel.builtin(), job.precision))


@pytest.mark.parametrize("name", INSTANCES)
def test_every_option_costs_and_holds_what_the_evaluator_says(name: str) -> None:
    context = context_of(name)
    checked = 0
    for option in islice(random_options(context, seed=1), 250):
        assert option_error(context, option) <= 1e-12, (option.task, option.stages()[:2], option.micro_batch)
        checked += 1
    assert checked >= 20


@pytest.mark.parametrize(
    "overrides",
    [
        {"batch__num_epochs": 2, "batch__num_mini_batches": 3},
        {"precision__lora_rank": 16},
        {"batch__num_prompts": 100, "batch__prompt_tokens": 700},
    ],
)
def test_options_agree_with_other_batches_and_adapters(overrides: dict[str, object]) -> None:
    context = context_of("guide20", **overrides)
    for option in islice(random_options(context, seed=2), 120):
        assert option_error(context, option) <= 1e-12


CPU_FLEET = """
workflow: {algorithm: GRPO, actor_model: Qwen/Qwen3-4B, reference_model: Qwen/Qwen3-4B}
device_types:
  cpu: {vendor: cpu, flops: {fp32: 2TFLOPS}, memory: 400GiB, memory_bandwidth: 200GB/s, source: made up}
cluster_topology:
  nodes:
    - {id: a, gpus: 2, type: cpu, interconnect: 20GB/s, host_ram: 900GiB, cpu_cores: 64, network: 10GB/s}
    - {id: b, gpus: 1, type: cpu, interconnect: 20GB/s, host_ram: 900GiB, cpu_cores: 64, network: 10GB/s}
precision: {dtype: fp32}
"""


def test_options_agree_on_a_fleet_of_cpus() -> None:
    """Where training keeps the activations of eager PyTorch and a gradient of every logit."""
    job = load_job(CPU_FLEET)
    assert trains_eagerly(job)
    context = SearchContext(job, UnitCosts(CostModel.builtin(), job.precision))
    kinds = set()
    for option in islice(random_options(context, seed=5), 12):  # a small fleet has few distinct options
        assert option_error(context, option) <= 1e-12
        kinds.add(job.workflow.tasks[option.task].kind)
    assert "train" in kinds


@pytest.mark.parametrize("name", INSTANCES)
def test_a_step_never_takes_longer_than_the_search_believed(name: str) -> None:
    context = context_of(name)
    errors = [step_error(context, *each) for each in islice(random_assignments(context, seed=3), 25)]
    feasible = [error for error in errors if error is not None]
    assert feasible
    assert max(feasible) <= 1e-12


def test_bounds_are_bounds() -> None:
    context = context_of("guide20")
    for grouping, assignment in islice(random_assignments(context, seed=4), 60):
        screened = context.steps.screen(grouping, assignment)
        bound = context.steps.bound(grouping, assignment)
        cost = context.steps.cost(grouping, assignment, float("inf"))
        assert screened <= cost * (1 + 1e-12)
        assert bound <= cost * (1 + 1e-12)


def test_swapping_equal_nodes_changes_nothing() -> None:
    context = context_of("paper64_uniform_wan/GRPO")
    grouping = ((0, 3), (1, 2))
    first = (context.counts([8, 8, 0, 8, 0, 0, 0, 0]), context.counts([0, 0, 8, 0, 8, 8, 8, 8]))
    second = (context.counts([0, 8, 8, 0, 8, 0, 0, 0]), context.counts([8, 0, 0, 8, 0, 8, 8, 8]))
    costs = [context.steps.cost(grouping, each, float("inf")) for each in (first, second)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-12)


@pytest.mark.parametrize("model", ["Qwen3-30B-A3B", "google/gemma-2-9b", "DeepSeek-V2-Lite"])
def test_experts_windows_and_latent_caches_agree(model: str) -> None:
    workflow = {"algorithm": "ReMax", "actor_model": model, "reference_model": model}
    context = context_of("paper64_lan/GRPO", workflow=workflow)
    for option in islice(random_options(context, seed=1), 60):
        assert option_error(context, option) <= 1e-12


@pytest.mark.parametrize("slowest_send", [0.0, 0.1, 2.0, 30.0])
def test_long_pipelines_take_what_the_recurrence_says(slowest_send: float) -> None:
    """Rounds of the steady state are left out: those of one stage that decides, and those of a way there and back."""
    rng = random.Random(slowest_send)
    for _ in range(60):
        stages = rng.randint(2, 16)
        kinds = [rng.uniform(0.5, 1.5) for _ in range(rng.choice([1, 2, stages]))]
        forward = [rng.choice(kinds) for _ in range(stages)]
        backward = [each * rng.choice([2.0, 3.0]) for each in forward]
        send = [rng.choice([0.0, slowest_send, rng.uniform(0.0, slowest_send)]) for _ in range(stages - 1)]
        m = rng.choice([1, rng.randint(2, 40), rng.randint(100, 500)])
        expected = one_f_one_b_seconds(forward, backward, send, m)
        assert pipeline_seconds(forward, backward, send, m) == pytest.approx(expected, rel=1e-12)


def test_random_options_of_a_small_fleet_end() -> None:
    """They were looked for without end where there were none left."""
    node = {"id": "only", "gpus": 1, "type": "H100", "interconnect": "PCIe-Gen4"}
    model = "Qwen2.5-0.5B"
    values = {
        "workflow": {"algorithm": "DPO", "actor_model": model, "reference_model": model, "online": False},
        "cluster_topology": {"nodes": [node]},
    }
    job = job_from_values(values, source="one device")
    options = list(random_options(SearchContext(job, UnitCosts(CostModel.builtin(), job.precision)), seed=1))
    assert 0 < len(options) == len({id(option) for option in options})
