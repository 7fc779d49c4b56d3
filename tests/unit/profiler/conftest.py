"""A made-up job on two devices, the calibrations that are its truth, and the run that would be recorded of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hetrl.cost.model import CostModel, PhaseCalibration
from hetrl.cost.unit import UnitCosts
from hetrl.measure import MachineFacts, Measurement
from hetrl.spec.job import Job
from hetrl.spec.load import load_job
from hetrl_profiler.composed import predicted_seconds
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
JOB_TEXT = JOB.replace("CONFIG", json.dumps(CONFIG))
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


@pytest.fixture(scope="session")
def job() -> Job:
    return load_job(JOB_TEXT)


@pytest.fixture(scope="session")
def truth() -> CostModel:
    return replace(CostModel.builtin(), calibrations=TRUTH)


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


@pytest.fixture(scope="session")
def made_up() -> SimpleNamespace:
    return SimpleNamespace(
        config=CONFIG, job_text=JOB_TEXT, machine=MACHINE, truth=TRUTH, devices=DEVICES, micro_batch=MICRO_BATCH,
        run_of=run_of,
    )  # fmt: skip
