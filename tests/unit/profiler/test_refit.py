"""Refit of a run: the composed amounts are the evaluator's own, and a made-up truth is found again."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.errors import SpecError
from hetrl.plan.plan import Group, Plan, Replica, Stage, TaskPlan
from hetrl.spec.job import Job
from hetrl.tools.refit import drift_lines
from hetrl_profiler.model_fit import calibrate, refit_run
from hetrl_profiler.refit import find_shift

MICRO_BATCH = 8


def plan_with(job: Job, shares: tuple[int, int]) -> Plan:
    tasks = tuple(
        TaskPlan(
            task=task.name,
            replicas=tuple(
                Replica(stages=(Stage(num_layers=4, devices=(device,)),), num_prompts=share)
                for device, share in enumerate(shares)
            ),
            micro_batch_size=256 if task.kind == "generate" else MICRO_BATCH,
        )
        for task in job.workflow.tasks
    )
    return Plan(groups=(Group(tasks=tuple(task.task for task in tasks), devices=(0, 1)),), tasks=tasks)


def step_seconds(job: Job, model: CostModel, shares: tuple[int, int], length: int) -> float:
    changed = replace(job, batch=replace(job.batch, mean_response_tokens=length, max_response_tokens=length))
    return evaluate(changed, plan_with(job, shares), UnitCosts(model, job.precision)).step_seconds


def test_composed_amounts_are_the_evaluators(job: Job, truth: CostModel, made_up: SimpleNamespace) -> None:
    """Per replica and task, the phases that a run would record add up to what the evaluator predicts."""
    estimate = evaluate(job, plan_with(job, (16, 8)), UnitCosts(truth, job.precision))
    rows = made_up.run_of(job, truth, (16, 8), 32, noise=0.0, seed=0)
    for number, device in enumerate(made_up.devices):
        own = {each.kind: each.seconds for each in rows if each.device_type == device}
        assert own["generate"] == pytest.approx(estimate.tasks["actor_generate"].replica_seconds[number], rel=1e-9)
        assert own["score"] == pytest.approx(estimate.tasks["reference_score"].replica_seconds[number], rel=1e-9)
        trained = own["old_log_probs"] + own["forward_backward"]
        assert trained == pytest.approx(estimate.tasks["actor_train"].replica_seconds[number], rel=1e-9)
    optimizer = max(each.seconds for each in rows if each.kind == "optimizer_step")
    assert optimizer == pytest.approx(estimate.tasks["actor_train"].details["optimizer_seconds"])
    (sync,) = (each.seconds for each in rows if each.kind == "phase")
    assert sync == pytest.approx(next(each.seconds for each in estimate.transfers if each.kind == "weights"))


def test_refit_on_run_1_predicts_run_2(job: Job, truth: CostModel, made_up: SimpleNamespace) -> None:
    """Two kinds of shares in run 1, other shares and lengths in run 2, 10 % noise on every phase."""
    rows = [
        row
        for seed, shares in enumerate([(16, 8), (12, 12)] * 6)
        for row in made_up.run_of(job, truth, shares, 32, noise=0.1, seed=seed)
    ]
    fitted = calibrate(job, rows, CostModel.builtin())
    for shares, length in (((18, 6), 24), ((14, 10), 16), ((20, 4), 16)):
        expected = step_seconds(job, truth, shares, length)
        before = abs(step_seconds(job, CostModel.builtin(), shares, length) / expected - 1)
        after = abs(step_seconds(job, fitted, shares, length) / expected - 1)
        assert after < 0.2 < before
    ratio = step_seconds(job, truth, (12, 12), 32) / step_seconds(job, truth, (16, 8), 32)
    predicted = step_seconds(job, fitted, (12, 12), 32) / step_seconds(job, fitted, (16, 8), 32)
    assert predicted == pytest.approx(ratio, rel=0.1)


def test_a_device_that_slowed_down_is_reported_and_the_other_is_not(
    job: Job, truth: CostModel, made_up: SimpleNamespace
) -> None:
    doubled = {
        key: replace(each, scale=2 * each.scale, per_iteration_seconds=2 * each.per_iteration_seconds,
                     per_sequence_seconds=2 * each.per_sequence_seconds)
        if key[0] == "slow" and key[1] != "sync" else each
        for key, each in made_up.truth.items()
    }  # fmt: skip
    known = replace(
        truth, calibrations={key: replace(each, provenance="measured") for key, each in made_up.truth.items()}
    )
    rows = [
        row
        for seed in range(8)
        for row in made_up.run_of(job, replace(truth, calibrations=doubled), (16, 8), 32, noise=0.03, seed=seed)
    ]
    found = refit_run(job, rows, known)
    assert {each.device for each in found.changes if each.is_drift} == {"slow"}
    drifted = [each for each in found.changes if each.is_drift]
    assert [each.ratio_before for each in drifted] == pytest.approx([2.0] * len(drifted), rel=0.05)
    assert [each.ratio_after for each in found.changes] == pytest.approx([1.0] * len(found.changes), rel=0.05)


def test_a_shift_is_found_by_hand() -> None:
    days = [f"2026-01-{day:02d}" for day in (1, 1, 2, 2, 3, 3, 4, 4, 5)]
    ratios = np.array([1.00, 1.02, 0.98, 1.01, 1.25, 1.20, 1.22, 1.23, 1.24])
    found = find_shift(days, ratios)
    assert found is not None
    assert (found.since, found.num_before) == ("2026-01-03", 4)
    assert found.ratio == pytest.approx(1.23 / np.sqrt(1.00 * 1.01))
    again = np.random.default_rng(0).permutation(9)
    assert find_shift([days[number] for number in again], ratios[again]) == found
    assert find_shift(days, 1 / ratios).ratio == pytest.approx(1 / found.ratio)  # type: ignore[union-attr]
    assert find_shift(days[:7], ratios[:7]) is None, "three measurements are no change yet"
    assert find_shift(days, np.array([1.0, 1.2, 0.9, 1.1, 1.0, 1.2, 0.9, 1.1, 1.3])) is None, "noise"
    assert find_shift(["2026-01-01"] * 9, ratios) is None, "at once"


def test_a_device_that_is_a_fifth_slower_since_yesterday(job: Job, truth: CostModel, made_up: SimpleNamespace) -> None:
    """One file holds both days: the change is dated, and the model is today's, not the mean of both."""
    slower = {
        key: replace(each, scale=1.2 * each.scale, per_iteration_seconds=1.2 * each.per_iteration_seconds,
                     per_sequence_seconds=1.2 * each.per_sequence_seconds)
        if key[0] == "slow" and key[1] != "sync" else each
        for key, each in made_up.truth.items()
    }  # fmt: skip
    today = replace(truth, calibrations=slower)
    rows = [
        row
        for day, model in ((1, truth), (2, today))
        for seed in range(6)
        for row in made_up.run_of(job, model, (16, 8), 32, noise=0.03, seed=10 * day + seed, day=day)
    ]
    found = refit_run(job, rows, CostModel.builtin())
    assert all(each.is_first for each in found.changes)
    drifted = [each for each in found.changes if each.is_drift]
    assert {each.device for each in drifted} == {"slow"} and len(drifted) == 5
    for each in drifted:
        assert each.shift is not None and each.shift.since.startswith("2026-01-02")
        assert each.shift.ratio == pytest.approx(1.2, rel=0.04)
        assert each.error_after < 0.05
    expected = step_seconds(job, today, (16, 8), 32)
    assert step_seconds(job, found.model, (16, 8), 32) == pytest.approx(expected, rel=0.03)
    (line,) = drift_lines(found.changes)
    assert line.startswith("drift: slow takes another time since 2026-01-02 00:00 UTC: generate x1.")


def test_a_first_calibration_is_no_drift(job: Job, truth: CostModel, made_up: SimpleNamespace) -> None:
    rows = [row for seed in range(6) for row in made_up.run_of(job, truth, (16, 8), 32, noise=0.03, seed=seed)]
    found = refit_run(job, rows, CostModel.builtin())
    assert min(each.ratio_before for each in found.changes) > 1.3
    assert drift_lines(found.changes) == ["drift: none"]


def test_fresh_measurements_outweigh_old_ones(job: Job, truth: CostModel, made_up: SimpleNamespace) -> None:
    slower = {key: replace(each, scale=1.5 * each.scale) for key, each in made_up.truth.items()}
    old = [row for seed in range(6) for row in made_up.run_of(job, truth, (16, 8), 32, noise=0.0, seed=seed, day=1)]
    new_model = replace(truth, calibrations=slower)
    fresh = [
        row for seed in range(6) for row in made_up.run_of(job, new_model, (16, 8), 32, noise=0.0, seed=seed, day=29)
    ]
    fitted = calibrate(job, [*old, *fresh], truth)
    expected = step_seconds(job, new_model, (16, 8), 32)
    assert step_seconds(job, fitted, (16, 8), 32) == pytest.approx(expected, rel=0.03)


def test_missing_figures_are_named(job: Job, truth: CostModel, made_up: SimpleNamespace) -> None:
    rows = [
        replace(each, amounts={key: value for key, value in each.amounts.items() if key != "micro_batch_size"})
        for each in made_up.run_of(job, truth, (16, 8), 32, noise=0.0, seed=0)
    ]
    with pytest.raises(SpecError, match=r"kind forward_backward: lack the amounts micro_batch_size") as caught:
        calibrate(job, rows, truth)
    assert len(caught.value.problems) == 3  # score, old_log_probs, forward_backward
    sizes = {task.name: MICRO_BATCH for task in job.workflow.tasks}
    assert calibrate(job, rows, truth, micro_batch_sizes=sizes).calibrations


def test_measurements_of_other_devices_are_refused(job: Job, truth: CostModel, made_up: SimpleNamespace) -> None:
    rows = [replace(each, device_type="other") for each in made_up.run_of(job, truth, (16, 8), 32, noise=0.0, seed=0)]
    with pytest.raises(SpecError, match="no phases of the job's device types"):
        calibrate(job, rows, truth)


def test_an_empty_share_says_nothing(job: Job, truth: CostModel, made_up: SimpleNamespace) -> None:
    rows = made_up.run_of(job, truth, (24, 8), 32, noise=0.0, seed=0)
    none = [
        replace(each, amounts={**each.amounts, "num_sequences": 0.0, "num_tokens": 0.0}, measured={"seconds": 1e-4})
        if each.device_type == "slow" and "num_sequences" in each.amounts
        else each
        for each in rows
    ]
    fitted = calibrate(job, none, truth)
    assert fitted.calibration("slow", "train") == truth.calibration("slow", "train")
