"""Refit of a run: the composed amounts are the evaluator's own, and a made-up truth is found again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel, PhaseCalibration
from hetrl.cost.unit import UnitCosts
from hetrl.errors import SpecError
from hetrl.measure import MachineFacts, Measurement
from hetrl.plan.plan import Group, Plan, Replica, Stage, TaskPlan
from hetrl.spec.job import Job
from hetrl.spec.load import load_job
from hetrl_profiler.composed import predicted_seconds
from hetrl_profiler.model_fit import calibrate, refit_run
from hetrl_profiler.observations import Surroundings, observe

CONFIG = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "vocab_size": 320,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 1024,
    "tie_word_embeddings": False, "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
JOB = """
workflow: {algorithm: GRPO, actor_model: {name: tiny, config: CONFIG}, reference_model: {name: tiny, config: CONFIG}}
device_types:
  fast: {vendor: cpu, flops: {fp32: 50GFLOPS}, memory: 8GiB, memory_bandwidth: 8GB/s}
  slow: {vendor: cpu, flops: {fp32: 50GFLOPS}, memory: 8GiB, memory_bandwidth: 8GB/s}
cluster_topology:
  nodes:
    - {id: a, gpus: 1, type: fast, interconnect: 2GB/s, host_ram: 8GiB, cpu_cores: 1, network: 2GB/s}
    - {id: b, gpus: 1, type: slow, interconnect: 2GB/s, host_ram: 8GiB, cpu_cores: 1, network: 2GB/s}
batch:
  {num_prompts: 24, responses_per_prompt: 8, prompt_tokens: 16, mean_response_tokens: 32, max_response_tokens: 32,
   num_epochs: 1, num_mini_batches: 1}
precision: {dtype: fp32}
"""
MACHINE = MachineFacts(cpu="x", num_cores=2, memory_bytes=1, system="y", software={})
MICRO_BATCH = 8
TRUTH = {
    ("fast", "generate"): PhaseCalibration(scale=3.0, per_iteration_seconds=2e-3, per_sequence_seconds=2e-5),
    ("slow", "generate"): PhaseCalibration(scale=6.0, per_iteration_seconds=4e-3, per_sequence_seconds=4e-5),
    ("fast", "prefill"): PhaseCalibration(scale=3.0, per_iteration_seconds=5e-3),
    ("slow", "prefill"): PhaseCalibration(scale=6.0, per_iteration_seconds=1e-2),
    ("fast", "score"): PhaseCalibration(scale=2.0, per_iteration_seconds=3e-3),
    ("slow", "score"): PhaseCalibration(scale=4.0, per_iteration_seconds=6e-3),
    ("fast", "train"): PhaseCalibration(scale=1.5, per_iteration_seconds=9e-3),
    ("slow", "train"): PhaseCalibration(scale=3.0, per_iteration_seconds=2e-2),
    ("fast", "optimizer"): PhaseCalibration(scale=2.0, per_iteration_seconds=1e-3),
    ("slow", "optimizer"): PhaseCalibration(scale=4.0, per_iteration_seconds=2e-3),
    ("fast", "sync"): PhaseCalibration(per_iteration_seconds=3e-2),
    ("slow", "sync"): PhaseCalibration(per_iteration_seconds=3e-2),
}
DEVICES = ("fast", "slow")


@pytest.fixture(scope="module")
def job() -> Job:
    import json

    return load_job(JOB.replace("CONFIG", json.dumps(CONFIG)))


@pytest.fixture(scope="module")
def truth() -> CostModel:
    return replace(CostModel.builtin(), calibrations=TRUTH)


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


def measured(
    kind: str, device: str, task: str, amounts: Mapping[str, float], seconds: float, day: int = 1
) -> Measurement:
    return Measurement(
        kind=kind,
        device_type=device,
        amounts=amounts,
        measured={"seconds": seconds},
        labels={"task": task} if kind != "phase" else {"phase": "weight_sync"},
        machine=MACHINE,
        date=f"2026-01-{day:02d}T00:00:00+00:00",
    )


def run_of(
    job: Job, model: CostModel, shares: tuple[int, int], length: int, *, noise: float, seed: int, day: int = 1
) -> list[Measurement]:
    """What a runtime would record of one step, if the model were the truth."""
    changed = replace(job, batch=replace(job.batch, mean_response_tokens=length, max_response_tokens=length))
    costs = UnitCosts(model, job.precision)
    draw = np.random.default_rng(seed)
    rows: list[Measurement] = []
    for device, share in zip(DEVICES, shares, strict=True):
        sequences = float(8 * share)
        whole = {
            "num_sequences": sequences,
            "num_tokens": sequences * (16 + length),
            "micro_batch_size": float(MICRO_BATCH),
        }
        asked = {
            "num_sequences": sequences, "num_prompts": float(share), "num_prompt_tokens": 16.0 * share,
            "num_response_tokens": sequences * length, "num_iterations": float(length),
        }  # fmt: skip
        rows += [
            measured("generate", device, "actor_generate", asked, 1.0, day),
            measured("score", device, "reference_score", whole, 1.0, day),
            measured("old_log_probs", device, "actor_train", whole, 1.0, day),
            measured("forward_backward", device, "actor_train", whole, 1.0, day),
            measured("optimizer_step", device, "actor_train", {}, 1.0, day),
        ]
    rows.append(measured("phase", "", "", {}, 1.0, day))
    surroundings = Surroundings(devices={each.name: each for each in job.topology.device_types}, job=changed)
    found = []
    for observation in observe(rows, surroundings):
        each = observation.measurement
        seconds = predicted_seconds(observation, costs) * float(np.exp(noise * draw.normal()))
        if each.kind != "weight_sync":
            found.append(replace(each, measured={"seconds": seconds}))
        elif each.device_type == "fast":
            found.append(replace(rows[-1], measured={"seconds": seconds}))
    return found


def step_seconds(job: Job, model: CostModel, shares: tuple[int, int], length: int) -> float:
    changed = replace(job, batch=replace(job.batch, mean_response_tokens=length, max_response_tokens=length))
    return evaluate(changed, plan_with(job, shares), UnitCosts(model, job.precision)).step_seconds


def test_composed_amounts_are_the_evaluators(job: Job, truth: CostModel) -> None:
    """Per replica and task, the phases that a run would record add up to what the evaluator predicts."""
    estimate = evaluate(job, plan_with(job, (16, 8)), UnitCosts(truth, job.precision))
    rows = run_of(job, truth, (16, 8), 32, noise=0.0, seed=0)
    for number, device in enumerate(DEVICES):
        own = {each.kind: each.seconds for each in rows if each.device_type == device}
        assert own["generate"] == pytest.approx(estimate.tasks["actor_generate"].replica_seconds[number], rel=1e-9)
        assert own["score"] == pytest.approx(estimate.tasks["reference_score"].replica_seconds[number], rel=1e-9)
        trained = own["old_log_probs"] + own["forward_backward"]
        assert trained == pytest.approx(estimate.tasks["actor_train"].replica_seconds[number], rel=1e-9)
    optimizer = max(each.seconds for each in rows if each.kind == "optimizer_step")
    assert optimizer == pytest.approx(estimate.tasks["actor_train"].details["optimizer_seconds"])
    (sync,) = (each.seconds for each in rows if each.kind == "phase")
    assert sync == pytest.approx(next(each.seconds for each in estimate.transfers if each.kind == "weights"))


def test_refit_on_run_1_predicts_run_2(job: Job, truth: CostModel) -> None:
    """Two kinds of shares in run 1, other shares and lengths in run 2, 10 % noise on every phase."""
    rows = [
        row
        for seed, shares in enumerate([(16, 8), (12, 12)] * 6)
        for row in run_of(job, truth, shares, 32, noise=0.1, seed=seed)
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


def test_a_device_that_slowed_down_is_reported_and_the_other_is_not(job: Job, truth: CostModel) -> None:
    doubled = {
        key: replace(each, scale=2 * each.scale, per_iteration_seconds=2 * each.per_iteration_seconds,
                     per_sequence_seconds=2 * each.per_sequence_seconds)
        if key[0] == "slow" and key[1] != "sync" else each
        for key, each in TRUTH.items()
    }  # fmt: skip
    known = replace(truth, calibrations={key: replace(each, provenance="measured") for key, each in TRUTH.items()})
    rows = [
        row
        for seed in range(8)
        for row in run_of(job, replace(truth, calibrations=doubled), (16, 8), 32, noise=0.03, seed=seed)
    ]
    found = refit_run(job, rows, known)
    assert {each.device for each in found.changes if each.is_drift} == {"slow"}
    drifted = [each for each in found.changes if each.is_drift]
    assert [each.ratio_before for each in drifted] == pytest.approx([2.0] * len(drifted), rel=0.05)
    assert [each.ratio_after for each in found.changes] == pytest.approx([1.0] * len(found.changes), rel=0.05)


def test_fresh_measurements_outweigh_old_ones(job: Job, truth: CostModel) -> None:
    slower = {key: replace(each, scale=1.5 * each.scale) for key, each in TRUTH.items()}
    old = [row for seed in range(6) for row in run_of(job, truth, (16, 8), 32, noise=0.0, seed=seed, day=1)]
    new_model = replace(truth, calibrations=slower)
    fresh = [row for seed in range(6) for row in run_of(job, new_model, (16, 8), 32, noise=0.0, seed=seed, day=29)]
    fitted = calibrate(job, [*old, *fresh], truth)
    expected = step_seconds(job, new_model, (16, 8), 32)
    assert step_seconds(job, fitted, (16, 8), 32) == pytest.approx(expected, rel=0.03)


def test_missing_figures_are_named(job: Job, truth: CostModel) -> None:
    rows = [
        replace(each, amounts={key: value for key, value in each.amounts.items() if key != "micro_batch_size"})
        for each in run_of(job, truth, (16, 8), 32, noise=0.0, seed=0)
    ]
    with pytest.raises(SpecError, match=r"kind forward_backward: lack the amounts micro_batch_size") as caught:
        calibrate(job, rows, truth)
    assert len(caught.value.problems) == 3  # score, old_log_probs, forward_backward
    sizes = {task.name: MICRO_BATCH for task in job.workflow.tasks}
    assert calibrate(job, rows, truth, micro_batch_sizes=sizes).calibrations


def test_measurements_of_other_devices_are_refused(job: Job, truth: CostModel) -> None:
    rows = [replace(each, device_type="other") for each in run_of(job, truth, (16, 8), 32, noise=0.0, seed=0)]
    with pytest.raises(SpecError, match="no phases of the job's device types"):
        calibrate(job, rows, truth)


def test_an_empty_share_says_nothing(job: Job, truth: CostModel) -> None:
    rows = run_of(job, truth, (24, 8), 32, noise=0.0, seed=0)
    none = [
        replace(each, amounts={**each.amounts, "num_sequences": 0.0, "num_tokens": 0.0}, measured={"seconds": 1e-4})
        if each.device_type == "slow" and "num_sequences" in each.amounts
        else each
        for each in rows
    ]
    fitted = calibrate(job, none, truth)
    assert fitted.calibration("slow", "train") == truth.calibration("slow", "train")
