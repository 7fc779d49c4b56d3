"""Seconds of generation: prefill of every prompt once, then decoding with a length distribution.

Concurrency is solved, not given: the engine's limit, the sequences at hand, and what the KV pool holds. While more
sequences wait than run, decoding proceeds at full concurrency; then the rest drains, and the number of running
sequences follows the survival function of the response length, so that the tail decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.collectives import all_reduce_seconds, send_seconds
from hetrl.cost.pipeline import forward_only_seconds
from hetrl.cost.stages import ALL_REDUCES_PER_LAYER, PlacedStage, forward_seconds, placed_stages, stage_sends_seconds
from hetrl.cost.unit import PREFILL_CHUNK_TOKENS, UnitCosts
from hetrl.plan.plan import Replica, TaskPlan
from hetrl.spec.job import Batch
from hetrl.spec.model import Model
from hetrl.spec.topology import Topology
from hetrl.spec.workflow import Task
from hetrl.workload.messages import activation_bytes

NUM_TAIL_SEGMENTS = 16
"""Midpoint rule over the longest response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One replica's generation: seconds, and the concurrency it reaches."""

    prefill_seconds: float
    decode_seconds: float
    concurrency: int
    num_iterations: float

    @property
    def seconds(self) -> float:
        """Prefill and decode."""
        return self.prefill_seconds + self.decode_seconds


def survival(batch: Batch, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fraction of responses longer than ``tokens``.

    From the histogram if the job has one; else from mean and maximum, as ``1 - (t / max)^k`` with
    ``k = mean / (max - mean)``, which is uniform for mean = max / 2 and a step for mean = max.
    """
    if batch.response_histogram:
        lengths = np.array([length for length, _ in batch.response_histogram], dtype=np.float64)
        weights = np.array([weight for _, weight in batch.response_histogram], dtype=np.float64)
        longer = lengths[None, :] > tokens[:, None]
        return np.asarray((longer * weights).sum(axis=1) / weights.sum())
    longest = float(batch.max_response_tokens)
    if batch.mean_response_tokens >= longest:
        return np.where(tokens < longest, 1.0, 0.0)
    exponent = batch.mean_response_tokens / (longest - batch.mean_response_tokens)
    return np.asarray(1.0 - np.minimum(tokens / longest, 1.0) ** exponent)


def in_flight_tokens(batch: Batch, sequences_per_prompt: int) -> float:
    """Mean KV tokens of a running sequence: its share of the prompt, and its response."""
    return batch.prompt_tokens / sequences_per_prompt + batch.mean_response_tokens


def concurrency(batch: Batch, task: Task, plan: TaskPlan, num_sequences: int, kv_tokens: float) -> int:
    """Sequences that run at once: engine limit, sequences at hand, KV pool. 0 if no longest sequence fits."""
    if kv_tokens < batch.max_sequence_tokens:
        return 0
    fits = math.floor(kv_tokens / in_flight_tokens(batch, task.sequences_per_prompt))
    return max(1, min(plan.micro_batch_size, num_sequences, fits))


def replica_generation(
    costs: UnitCosts, topology: Topology, batch: Batch, task: Task, plan: TaskPlan, replica: Replica, kv_tokens: float
) -> Generation:
    """Seconds of one replica with a KV pool of ``kv_tokens`` tokens; infinite if the pool is too small."""
    sequences = replica.num_prompts * task.sequences_per_prompt
    if sequences == 0:
        return Generation(prefill_seconds=0.0, decode_seconds=0.0, concurrency=0, num_iterations=0.0)
    running = concurrency(batch, task, plan, sequences, kv_tokens)
    if running == 0:
        return Generation(prefill_seconds=math.inf, decode_seconds=math.inf, concurrency=0, num_iterations=0.0)
    stages = placed_stages(topology, replica)
    active, context, iterations = decode_profile(batch, sequences, running)
    composed = float(
        iterations @ decode_iteration_seconds(costs, topology, replica, stages, task.model, active, context)
    )
    slowest = max(
        costs.model.calibration(placed.device_type.name, "generate").seconds(
            composed, float(iterations.sum()), sequences * batch.mean_response_tokens
        )
        for placed in stages
    )
    return Generation(
        prefill_seconds=prefill_seconds(costs, topology, batch, task, replica, stages),
        decode_seconds=slowest,
        concurrency=running,
        num_iterations=float(iterations.sum()),
    )


def decode_profile(
    batch: Batch, num_sequences: int, running: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Segments of decoding: active sequences, mean context, and number of iterations of each.

    The first segment is the full-concurrency phase, the others are the tail. In the tail an iteration takes place
    while any sequence runs, so with probability ``1 - (1 - S(t))^c``.
    """
    longest = float(batch.max_response_tokens)
    times = (np.arange(NUM_TAIL_SEGMENTS) + 0.5) * longest / NUM_TAIL_SEGMENTS
    alive = survival(batch, times)
    any_alive = 1.0 - (1.0 - alive) ** running
    tail_active = np.divide(running * alive, any_alive, out=np.ones_like(alive), where=any_alive > 0)
    tail_iterations = any_alive * longest / NUM_TAIL_SEGMENTS
    steady_iterations = (num_sequences - running) * batch.mean_response_tokens / running
    active = np.concatenate([[float(running)], np.maximum(tail_active, 1.0)])
    context = np.concatenate([[batch.prompt_tokens + batch.mean_response_tokens / 2], batch.prompt_tokens + times])
    return active, context, np.concatenate([[steady_iterations], tail_iterations])


def decode_iteration_seconds(
    costs: UnitCosts,
    topology: Topology,
    replica: Replica,
    stages: tuple[PlacedStage, ...],
    model: Model,
    active: NDArray[np.float64],
    context: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Seconds of one token for all active sequences, without calibration.

    With P stages the sequences are split into P micro-batches: ``max(sum_j tau_j(c/P), P max_j tau_j(c/P))``.
    """
    num_stages = len(stages)
    split = np.maximum(active / num_stages, 1.0)
    per_stage = []
    for number, placed in enumerate(stages):
        seconds = np.zeros_like(active)
        tensor_parallel = placed.stage.tensor_parallel
        for run in costs.runs(model, placed.first_layer, placed.stage.num_layers):
            seconds += run.count * costs.decode_layer_seconds(
                placed.device_type, model, tensor_parallel, run.kind, split, context
            )
        hidden = activation_bytes(model, num_sequences=1, tokens=1, bytes_per_element=costs.bytes_per_element)
        if placed.link is not None:
            reduces = [all_reduce_seconds(hidden * count, tensor_parallel, placed.link) for count in split.tolist()]
            seconds += ALL_REDUCES_PER_LAYER * placed.stage.num_layers * np.array(reduces)
        if number == num_stages - 1:
            seconds += costs.decode_head_seconds(placed.device_type, model, tensor_parallel, split)
        else:
            link = topology.link(placed.stage.devices[-1], stages[number + 1].stage.devices[0])
            seconds += send_seconds(0.0, link) + hidden * split / link.bytes_per_second
        per_stage.append(seconds)
    stacked = np.stack(per_stage)
    return np.asarray(np.maximum(stacked.sum(axis=0), num_stages * stacked.max(axis=0)))


def prefill_seconds(
    costs: UnitCosts, topology: Topology, batch: Batch, task: Task, replica: Replica, stages: tuple[PlacedStage, ...]
) -> float:
    """Seconds of computing every prompt once, in chunks of at most `PREFILL_CHUNK_TOKENS` tokens."""
    per_chunk = max(1, PREFILL_CHUNK_TOKENS // batch.prompt_tokens)
    per_chunk = min(per_chunk, replica.num_prompts)
    num_chunks = math.ceil(replica.num_prompts / per_chunk)
    fill = replica.num_prompts / (num_chunks * per_chunk)
    compute, tensor = forward_seconds(
        costs, stages, task.model, num_sequences=per_chunk, tokens=batch.prompt_tokens, all_logits=False
    )
    hidden = activation_bytes(
        task.model, num_sequences=per_chunk, tokens=batch.prompt_tokens, bytes_per_element=costs.bytes_per_element
    )
    forward = [
        fill * (costs.model.calibration(placed.device_type.name, "prefill").seconds(seconds, 1, per_chunk) + reduces)
        for placed, seconds, reduces in zip(stages, compute, tensor, strict=True)
    ]
    sends = [fill * seconds for seconds in stage_sends_seconds(topology, replica, hidden)]
    return forward_only_seconds(forward, sends, num_chunks)
