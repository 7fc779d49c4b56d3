"""What a cost model says of the demo's steps, with any shares and lengths."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hetrl.cost.estimate import Estimate
from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.plan.plan import Plan
from hetrl.runtime.step import StepRecord
from hetrl.search.hybrid import solve
from hetrl.search.result import SearchResult
from hetrl.spec.job import Job

Shares = Mapping[str, tuple[int, ...]]


def _estimate(job: Job, plan: Plan, models: Path, shares: Shares, max_response_tokens: int | None) -> Estimate:
    length = max_response_tokens or job.batch.max_response_tokens
    ratio = length / job.batch.max_response_tokens
    batch = replace(job.batch, max_response_tokens=length, mean_response_tokens=job.batch.mean_response_tokens * ratio)
    changed = replace(job, batch=batch)
    moved = Plan(
        groups=plan.groups,
        tasks=tuple(
            replace(
                task,
                replicas=tuple(
                    replace(replica, num_prompts=prompts)
                    for replica, prompts in zip(task.replicas, shares[task.task], strict=True)
                ),
            )
            for task in plan.tasks
        ),
    )
    model = CostModel.load(models)
    return evaluate(model.with_links(changed), moved, UnitCosts(model, job.precision))


def predicted_step_seconds(
    job: Job, plan: Plan, models: Path, shares: Shares, max_response_tokens: int | None = None
) -> float:
    """Step time of a plan with other shares and response limit."""
    return _estimate(job, plan, models, shares, max_response_tokens).step_seconds


def predicted_phases(
    trained: Sequence[Sequence[StepRecord]], job: Job, plan: Plan, fitted: Path, refitted: Path, shares: Shares
) -> dict[str, tuple[float, float, float]]:
    """Phase -> (predicted, measured median, after refit) seconds at the planned shares."""
    records = [record for run in trained for record in run[2:] if dict(record.shares) == dict(shares)]
    kinds = {"generate": "generate", "score": "score", "train": "train"}
    result = {}
    for kind, phase in kinds.items():
        names = [task.name for task in job.workflow.tasks if task.kind == kind]
        if not names:
            continue
        predicted = [
            sum(_estimate(job, plan, models, shares, None).tasks[name].seconds for name in names)
            for models in (fitted, refitted)
        ]
        measured = statistics.median(record.phase_seconds[phase] for record in records)
        result[phase] = (predicted[0], measured, predicted[1])
    syncs = [
        sum(each.seconds for each in _estimate(job, plan, models, shares, None).transfers if each.kind == "weights")
        for models in (fitted, refitted)
    ]
    measured = statistics.median(record.phase_seconds["weight_sync"] for record in records)
    result["weight_sync"] = (syncs[0], measured, syncs[1])
    return result


def replanned(job: Job, models: Path) -> SearchResult:
    """Plan again with another cost model."""
    model = CostModel.load(models)
    return solve(model.with_links(job), UnitCosts(model, job.precision))
