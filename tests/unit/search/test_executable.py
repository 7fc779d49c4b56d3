"""``optimizer.executable``: plans that can be launched, or a refusal before any search, by either solver."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.errors import SpecError
from hetrl.plan.capabilities import unsupported
from hetrl.plan.plan import Plan, Replica, Stage
from hetrl.search.result import SearchResult
from hetrl.search.solvers import solve
from hetrl.spec.job import Job
from hetrl.spec.load import load_job

CPUS = """
workflow: {algorithm: GRPO, actor_model: Qwen2.5-0.5B, reference_model: Qwen2.5-0.5B}
device_types:
  cpu-fast: {vendor: cpu, flops: {fp32: 50GFLOPS, bf16: 50GFLOPS}, memory: 64GiB, memory_bandwidth: 10GB/s}
  cpu-slow: {vendor: cpu, flops: {fp32: 25GFLOPS, bf16: 25GFLOPS}, memory: 64GiB, memory_bandwidth: 10GB/s}
cluster_topology:
  nodes:
    - {id: a, gpus: 1, type: cpu-fast, cpu_cores: 2, host_ram: 256GiB}
    - {id: b, gpus: 1, type: cpu-slow, cpu_cores: 2, host_ram: 256GiB}
batch: {num_prompts: 8}
precision: {dtype: fp32}
optimizer: {executable: true, budget: 100, max_search_seconds: 600}
"""

BEYOND_THE_RUNTIME = {
    "workflow.algorithm": {"workflow.algorithm": "RLOO"},
    "workflow.reward_model": {"workflow.reward_model": "Qwen2.5-0.5B"},
    "workflow.staleness": {"workflow.staleness": 1},
    "precision.dtype": {"precision.dtype": "bf16"},
    "precision.gradient_dtype": {"precision.gradient_dtype": "bf16"},
    "precision.kv_cache_dtype": {"precision.kv_cache_dtype": "bf16"},
    "precision.lora_rank": {"precision.lora_rank": 8},
    "precision.optimizer": {"precision.optimizer": "sgd"},
    "cluster_topology": {"cluster_topology.nodes[1]": {"id": "b", "gpus": 1, "type": "A100-80GB"}},
}


def job_of(**overrides: object) -> Job:
    return load_job(CPUS, overrides={key.replace("__", "."): value for key, value in overrides.items()})


def search(job: Job, warm_start: Plan | None = None) -> SearchResult:
    return solve(job, UnitCosts(CostModel.builtin(), job.precision), warm_start=warm_start)


@pytest.mark.parametrize("solver", ["hybrid", "ilp"])
def test_a_plan_that_is_found_can_be_launched(solver: str) -> None:
    job = job_of(optimizer__solver=solver)
    assert unsupported(job, search(job).plan) == []


@pytest.mark.parametrize("solver", ["hybrid", "ilp"])
@pytest.mark.parametrize("path", BEYOND_THE_RUNTIME)
def test_a_job_that_no_plan_makes_launchable_is_refused_by_the_key(
    solver: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for searching in ("hetrl.search.hybrid.SearchContext", "hetrl.search.exact.solver.ExactProblem"):
        monkeypatch.delattr(searching)  # nothing is searched
    job = load_job(CPUS, overrides={"optimizer.solver": solver, **BEYOND_THE_RUNTIME[path]})
    with pytest.raises(SpecError) as caught:
        search(job)
    assert [each.path for each in caught.value.problems] == ["optimizer.executable", path]


@pytest.mark.parametrize("solver", ["hybrid", "ilp"])
def test_a_start_that_cannot_be_launched_is_refused(solver: str) -> None:
    job = job_of(optimizer__solver=solver)
    found = search(job_of()).plan
    layers = job.workflow.task("reference_score").model.num_layers
    stages = (Stage(num_layers=layers - 1, devices=(0,)), Stage(num_layers=1, devices=(1,)))
    pipeline = (Replica(num_prompts=job.batch.num_prompts, stages=stages),)
    start = replace(
        found,
        tasks=tuple(
            replace(each, replicas=pipeline) if each.task == "reference_score" else each for each in found.tasks
        ),
    )
    with pytest.raises(SpecError, match=r"--warm-start: tasks.reference_score.*pipeline stages > 1 in scoring"):
        search(job, start)
