"""Seconds of a training task: pipelines of all replicas, gradient reduce, optimizer step, old log-probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hetrl.cost.collectives import (
    all_gather_seconds,
    best_all_reduce_seconds,
    reduce_scatter_seconds,
    slowest_link,
)
from hetrl.cost.pipeline import forward_only_seconds, one_f_one_b_seconds
from hetrl.cost.stages import ReplicaClass, forward_seconds, placed_stages, replica_class, stage_sends_seconds
from hetrl.cost.unit import UnitCosts
from hetrl.plan.plan import Replica, TaskPlan
from hetrl.spec.job import Batch
from hetrl.spec.topology import Topology
from hetrl.spec.workflow import Task
from hetrl.workload.memory import TrainState, train_state
from hetrl.workload.messages import activation_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTraining:
    """One replica's share of a training task: seconds of one mini-batch's pipeline and of the old log-probabilities."""

    pipeline_seconds: float
    old_log_prob_seconds: float
    num_micro_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSeconds:
    """A training task's seconds per step, split by cause."""

    replicas: tuple[ReplicaTraining, ...]
    num_updates: int
    reduce_seconds: float
    optimizer_seconds: float

    @property
    def compute_seconds(self) -> float:
        """Pipelines and old log-probabilities; a barrier closes each mini-batch."""
        if not self.replicas:
            return 0.0
        slowest = max(replica.pipeline_seconds for replica in self.replicas)
        first = max(replica.old_log_prob_seconds + replica.pipeline_seconds for replica in self.replicas)
        return first + (self.num_updates - 1) * slowest + self.num_updates * self.optimizer_seconds

    @property
    def communication_seconds(self) -> float:
        """Gradient reduces (and FSDP weight gathers) of all updates."""
        return self.num_updates * self.reduce_seconds


def replica_training(
    costs: UnitCosts, topology: Topology, batch: Batch, task: Task, plan: TaskPlan, replica: Replica
) -> ReplicaTraining:
    """Seconds of one replica.

    Micro-batches of a mini-batch are balanced: with n sequences in m = ceil(n / b) micro-batches each costs
    n / (m b) of a full one.
    """
    sequences = replica.num_prompts * task.sequences_per_prompt
    if sequences == 0:
        return ReplicaTraining(pipeline_seconds=0.0, old_log_prob_seconds=0.0, num_micro_batches=0)
    tokens = batch.mean_sequence_tokens
    per_update = sequences / batch.num_mini_batches
    num_micro_batches = math.ceil(per_update / plan.micro_batch_size)
    fill = per_update / (num_micro_batches * plan.micro_batch_size)
    stages = placed_stages(topology, replica)
    compute, tensor = forward_seconds(costs, stages, task.model, num_sequences=plan.micro_batch_size, tokens=tokens)
    passes_back = 3 if plan.recompute else 2
    hidden = activation_bytes(
        task.model, num_sequences=plan.micro_batch_size, tokens=tokens, bytes_per_element=costs.bytes_per_element
    )
    sends = tuple(fill * seconds for seconds in stage_sends_seconds(topology, replica, hidden))
    forward, backward, scoring = [], [], []
    for placed, seconds, all_reduces in zip(stages, compute, tensor, strict=True):
        train = costs.model.calibration(placed.device_type.name, "train")
        score = costs.model.calibration(placed.device_type.name, "score")
        per_sequence = train.per_sequence_seconds * plan.micro_batch_size
        ahead = train.scale * seconds + train.per_iteration_seconds / 3 + per_sequence / 3
        behind = train.scale * seconds * passes_back + (train.per_iteration_seconds + per_sequence) * 2 / 3
        forward.append(fill * (ahead + all_reduces))
        # tensor-parallel all-reduces of the backward pass, and of the repeated forward pass when recomputing
        backward.append(fill * (behind + all_reduces * (2 if plan.recompute else 1)))
        scoring.append(fill * (score.seconds(seconds, 1, plan.micro_batch_size) + all_reduces))
    old_log_probs = 0.0
    if task.role == "actor":
        old_log_probs = forward_only_seconds(scoring, sends, num_micro_batches * batch.num_mini_batches)
    return ReplicaTraining(
        pipeline_seconds=one_f_one_b_seconds(forward, backward, sends, num_micro_batches),
        old_log_prob_seconds=old_log_probs,
        num_micro_batches=num_micro_batches,
    )


def rank_states(costs: UnitCosts, task: Task, plan: TaskPlan) -> tuple[TrainState, ...]:
    """Training state of one rank of every stage (equal over replicas and shards)."""
    states = []
    first_layer = 0
    for stage in plan.replicas[0].stages:
        states.append(
            train_state(
                task.model,
                costs.precision,
                first_layer=first_layer,
                num_layers=stage.num_layers,
                tensor_parallel=stage.tensor_parallel,
                num_replicas=len(plan.replicas),
                sharding=plan.sharding,
            )
        )
        first_layer += stage.num_layers
    return tuple(states)


def reduce_seconds(costs: UnitCosts, topology: Topology, task: Task, plan: TaskPlan, num_micro_batches: int) -> float:
    """Exposed seconds of one update's data-parallel communication, the slowest stage deciding.

    All rings of all stages and shards run at once; rings that leave a node share its network card.
    """
    num_replicas = len(plan.replicas)
    if num_replicas == 1:
        return 0.0
    stages = range(len(plan.replicas[0].stages))
    rings = [sorted(replica.stages[j].devices[0] for replica in plan.replicas) for j in stages]
    leaving: dict[int, int] = {}
    for j, ring in zip(stages, rings, strict=True):
        nodes = {topology.devices[device].node for device in ring}
        if len(nodes) > 1:
            for node in nodes:
                leaving[node] = leaving.get(node, 0) + plan.replicas[0].stages[j].tensor_parallel
    worst = 0.0
    unsharded = 1 if plan.sharding != "fsdp" else num_replicas
    for ring, state in zip(rings, rank_states(costs, task, plan), strict=True):
        nodes = {topology.devices[device].node for device in ring}
        flows = max((leaving.get(node, 1) for node in nodes), default=1)
        link = slowest_link(topology, ring, flows_per_node=flows)
        gradients, weights = state.gradients * unsharded, state.weights * unsharded
        if plan.sharding == "none":
            seconds = best_all_reduce_seconds(gradients, topology, ring, flows_per_node=flows)
        else:
            seconds = reduce_scatter_seconds(gradients, num_replicas, link)
        seconds *= 1.0 - costs.model.gradient_overlap
        if plan.sharding == "zero1":
            seconds += all_gather_seconds(weights, num_replicas, link)
        elif plan.sharding == "fsdp":
            gathers = 2 * num_micro_batches * all_gather_seconds(weights, num_replicas, link)
            seconds += gathers * (1.0 - costs.model.weight_gather_overlap)
        kind = topology.devices[ring[0]].type.name
        worst = max(worst, costs.model.calibration(kind, "reduce").seconds(seconds, 1, 0))
    return worst


def optimizer_seconds(costs: UnitCosts, topology: Topology, task: Task, plan: TaskPlan) -> float:
    """Seconds of one optimizer step, the slowest rank deciding.

    On the device the whole state passes through memory once; on the host the states pass through host memory,
    shared by the node's ranks, while gradients and weights cross the host link.
    """
    ranks_on_node: dict[int, int] = {}
    for device in plan.devices:
        node = topology.devices[device].node
        ranks_on_node[node] = ranks_on_node.get(node, 0) + 1
    worst = 0.0
    for state, stages in zip(
        rank_states(costs, task, plan), zip(*(replica.stages for replica in plan.replicas), strict=True), strict=True
    ):
        for stage in stages:
            device = topology.devices[stage.devices[0]]
            node = topology.nodes[device.node]
            total = state.weights + state.gradients + state.optimizer
            if plan.residency.optimizer_states == "host":
                host = total * ranks_on_node[device.node] / node.host_memory_bytes_per_second
                seconds = max(host, (state.gradients + state.weights) / node.host_link_bytes_per_second)
            else:
                seconds = total / device.type.memory_bytes_per_second
            worst = max(worst, costs.model.calibration(device.type.name, "optimizer").seconds(seconds, 1, 0))
    return worst


def training_seconds(costs: UnitCosts, topology: Topology, batch: Batch, task: Task, plan: TaskPlan) -> TrainingSeconds:
    """Seconds of a training task per step."""
    known: dict[ReplicaClass, ReplicaTraining] = {}
    for replica in plan.replicas:
        key = replica_class(topology, replica)
        if key not in known:
            known[key] = replica_training(costs, topology, batch, task, plan, replica)
    replicas = tuple(known[replica_class(topology, replica)] for replica in plan.replicas)
    return compose_training(costs, topology, batch, task, plan, replicas)


def compose_training(
    costs: UnitCosts,
    topology: Topology,
    batch: Batch,
    task: Task,
    plan: TaskPlan,
    replicas: tuple[ReplicaTraining, ...],
) -> TrainingSeconds:
    """Add the gradient reduce and the optimizer step to the replicas' pipelines."""
    return TrainingSeconds(
        replicas=replicas,
        num_updates=batch.num_epochs * batch.num_mini_batches,
        reduce_seconds=reduce_seconds(costs, topology, task, plan, max(each.num_micro_batches for each in replicas)),
        optimizer_seconds=optimizer_seconds(costs, topology, task, plan),
    )
