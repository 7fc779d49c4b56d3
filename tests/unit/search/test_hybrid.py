"""The hybrid search as a whole: reproducible, bounded, interruptible, obedient."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.errors import InfeasibleError
from hetrl.plan.capabilities import unsupported
from hetrl.plan.rules import plan_problems
from hetrl.search.hybrid import solve
from hetrl.search.result import SearchResult
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values
from hetrl.spec.presets import benchmark_instance


def job_of(name: str = "guideC/Llama-3-8B/PPO", **optimizer: object) -> Job:
    return benchmark_instance(name, {f"optimizer.{key}": value for key, value in optimizer.items()})


def search(job: Job, **more: object) -> SearchResult:
    return solve(job, UnitCosts(CostModel.builtin(), job.precision), **more)  # type: ignore[arg-type]


def test_the_estimate_is_the_evaluators_and_respects_the_bound() -> None:
    job = job_of(budget=600)
    result = search(job)
    again = evaluate(job, result.plan, UnitCosts(CostModel.builtin(), job.precision))
    assert again.feasible
    assert again.step_seconds == result.estimate.step_seconds
    assert 0 < result.lower_bound <= result.estimate.step_seconds
    assert result.gap == pytest.approx(result.estimate.step_seconds / result.lower_bound - 1)


def test_every_device_serves_one_group() -> None:
    result = search(job_of("paper64_wan/GRPO", budget=300))
    devices = [device for group in result.plan.groups for device in group.devices]
    assert len(devices) == len(set(devices))


@pytest.mark.parametrize(
    ("device", "overrides", "task"),
    [
        ("A100-80GB", {"precision.kv_cache_dtype": "fp8"}, "actor_generate"),
        ("forward-only", {}, "actor_train"),
        ("no-bf16", {}, "reference_score"),
    ],
)
def test_tasks_stay_off_devices_that_cannot_run_them(device: str, overrides: dict[str, object], task: str) -> None:
    """Whatever else is faster: eight devices that cannot run the task beside two slow ones that can."""
    kinds = {
        "forward-only": {"flops": "1000TFLOPS", "memory": "80GB", "memory_bandwidth": "3TB/s", "can_train": False},
        "no-bf16": {"flops": {"fp16": "1000TFLOPS"}, "memory": "80GB", "memory_bandwidth": "3TB/s"},
    }
    nodes = [
        {"id": "many", "gpus": 8, "type": device, "interconnect": "100GB/s"},
        {"id": "few", "gpus": 2, "type": "L4", "interconnect": "PCIe-Gen4"},
    ]
    model = "Qwen2.5-0.5B"
    values = {
        "workflow": {"algorithm": "GRPO", "actor_model": model, "reference_model": model},
        "cluster_topology": {"nodes": nodes},
        "device_types": kinds,
        "optimizer": {"budget": 60},
    }
    job = job_from_values(values, source="many and few", overrides=overrides)
    plan = search(job).plan
    assert plan_problems(job, plan) == []
    assert {job.topology.devices[device].type.name for device in plan.task(task).devices} == {"L4"}


def test_interrupted_search_returns_its_best_plan() -> None:
    def interrupt(stage: str, best: float) -> None:
        raise KeyboardInterrupt

    result = search(job_of(budget=600), progress=interrupt)
    assert result.interrupted
    assert result.estimate.feasible


def test_a_time_limit_of_nothing_still_gives_a_plan_and_says_so() -> None:
    result = search(job_of(max_search_seconds=0.01))
    assert result.stopped_by_time
    assert result.estimate.feasible


def test_warm_start_is_never_worse() -> None:
    good = search(job_of(budget=2000))
    warm = search(job_of(budget=30, seed=5), warm_start=good.plan)
    assert warm.estimate.step_seconds <= good.estimate.step_seconds


@pytest.mark.slow
def test_too_small_a_fleet_names_the_task_that_fits_nowhere() -> None:
    values = {"cluster_topology.nodes": [{"id": "small", "gpus": 1, "type": "L4"}]}
    job = benchmark_instance("guide20", values)
    with pytest.raises(InfeasibleError) as caught:
        search(job)
    assert "actor_train" in str(caught.value)


def test_asynchronous_period_is_bounded_and_shorter_than_a_step() -> None:
    job = job_of("paper64_lan/GRPO", budget=400)
    synchronous = search(job)
    period = search(replace(job, staleness=1))
    assert period.lower_bound <= period.estimate.step_seconds < synchronous.estimate.step_seconds


def test_dollars_as_objective_buy_cheaper_steps() -> None:
    fast, cheap = search(job_of("guide20", budget=600)), search(job_of("guide20", budget=600, objective="usd_per_step"))
    assert fast.estimate.usd_per_step is not None and cheap.estimate.usd_per_step is not None
    assert cheap.estimate.usd_per_step < fast.estimate.usd_per_step
    assert fast.estimate.step_seconds < cheap.estimate.step_seconds


@pytest.mark.parametrize(
    ("one", "other"), [("step_seconds", "tokens_per_second"), ("usd_per_step", "usd_per_million_tokens")]
)
def test_with_a_fixed_batch_rates_and_amounts_per_step_choose_the_same_plan(one: str, other: str) -> None:
    assert search(job_of(budget=200, objective=one)).plan == search(job_of(budget=200, objective=other)).plan


def test_executable_plans_ask_for_nothing_the_runtime_lacks() -> None:
    workflow = {"algorithm": "GRPO", "actor_model": "Qwen2.5-0.5B", "reference_model": "Qwen2.5-0.5B"}
    job = benchmark_instance(
        "guideC/Llama-3-8B/PPO", {"workflow": workflow, "optimizer.executable": True, "optimizer.budget": 300}
    )
    result = search(job)
    assert not [problem for problem in unsupported(job, result.plan) if problem.path.startswith("tasks")]
