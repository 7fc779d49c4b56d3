"""Seconds of a scoring task: forward passes over whole sequences, logits included."""

from __future__ import annotations

import math

from hetrl.cost.pipeline import forward_only_seconds
from hetrl.cost.stages import forward_seconds, placed_stages, stage_sends_seconds
from hetrl.cost.unit import UnitCosts
from hetrl.plan.plan import Replica, TaskPlan
from hetrl.spec.job import Batch
from hetrl.spec.topology import Topology
from hetrl.spec.workflow import Task
from hetrl.workload.messages import activation_bytes


def replica_scoring_seconds(
    costs: UnitCosts, topology: Topology, batch: Batch, task: Task, plan: TaskPlan, replica: Replica
) -> float:
    """Seconds of one replica; micro-batches are balanced as in training."""
    sequences = replica.num_prompts * task.sequences_per_prompt
    if sequences == 0:
        return 0.0
    tokens = batch.mean_sequence_tokens
    num_micro_batches = math.ceil(sequences / plan.micro_batch_size)
    fill = sequences / (num_micro_batches * plan.micro_batch_size)
    stages = placed_stages(topology, replica)
    compute, tensor = forward_seconds(costs, stages, task.model, num_sequences=plan.micro_batch_size, tokens=tokens)
    hidden = activation_bytes(
        task.model, num_sequences=plan.micro_batch_size, tokens=tokens, bytes_per_element=costs.bytes_per_element
    )
    sends = [fill * seconds for seconds in stage_sends_seconds(topology, replica, hidden)]
    forward = [
        fill
        * (
            costs.model.calibration(placed.device_type.name, "score").seconds(seconds, 1, plan.micro_batch_size)
            + reduces
        )
        for placed, seconds, reduces in zip(stages, compute, tensor, strict=True)
    ]
    return forward_only_seconds(forward, sends, num_micro_batches)
