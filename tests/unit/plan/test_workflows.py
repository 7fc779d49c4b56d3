"""Every built-in workflow can be planned, and the guide's job with either A100."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.search.hybrid import solve
from hetrl.spec.job import Job
from hetrl.spec.load import load_job
from hetrl.tools.plan_notes import offload_notes
from tests.helpers.jobs import MODELS, workflow_job


def quick(job: Job) -> Job:
    return replace(job, optimizer=replace(job.optimizer, budget=50, max_search_seconds=300.0))


@pytest.mark.parametrize("algorithm", sorted(MODELS))
def test_every_workflow_has_a_feasible_plan(algorithm: str) -> None:
    job = quick(workflow_job(algorithm))
    result = solve(job, UnitCosts(CostModel.builtin(), job.precision))
    assert result.estimate.feasible
    assert result.estimate.step_seconds > 0
    assert {task.task for task in result.plan.tasks} == {task.name for task in job.workflow.tasks}
    for task in result.plan.tasks:
        assert task.num_prompts == job.batch.num_prompts


def test_offline_dpo_has_no_engine_and_no_sync() -> None:
    job = quick(workflow_job("DPO", online=False))
    result = solve(job, UnitCosts(CostModel.builtin(), job.precision))
    assert [task.name for task in job.workflow.tasks] == ["reference_score", "actor_train"]
    assert all(each.kind != "weights" for each in result.estimate.transfers)


@pytest.mark.parametrize("a100", ["A100-80GB", "A100-40GB"])
def test_the_guides_job_offloads_and_fits(a100: str, repository: Path) -> None:
    """The actor's training state alone is 1,051 GiB, so every feasible plan moves something off the devices."""
    job = quick(load_job(repository / "configs/rlhf_70b.yaml", overrides={"cluster_topology.nodes[1].type": a100}))
    result = solve(job, UnitCosts(CostModel.builtin(), job.precision))
    assert result.estimate.feasible
    notes = "\n".join(offload_notes(job, result.plan))
    assert "would together need" in notes and "GiB" in notes
    moved = [
        task.task
        for task in result.plan.tasks
        if task.residency.weights_when_idle in ("host", "dropped") or task.residency.optimizer_states != "device"
    ]
    assert moved
    for device, intervals in result.estimate.memory.devices.items():
        for terms in intervals.values():
            assert sum(terms.values()) <= result.estimate.memory.limits[device]
