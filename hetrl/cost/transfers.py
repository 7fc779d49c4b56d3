"""Seconds of what moves between tasks: rollouts, scores, and weights from training to the role's other tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hetrl.cost.model import CostModel
from hetrl.cost.residency import RankMemory
from hetrl.plan.plan import TaskPlan
from hetrl.spec.devices import DTYPE_BYTES
from hetrl.spec.job import Job
from hetrl.spec.topology import Link
from hetrl.spec.workflow import Task
from hetrl.workload.memory import stage_parameters
from hetrl.workload.messages import rollout_bytes, score_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One movement between two tasks: kind (``rollout``, ``scores`` or ``weights``), bytes and seconds."""

    kind: str
    source: str
    target: str
    num_bytes: float
    seconds: float


def data_transfer(
    job: Job, source: Task, source_plan: TaskPlan, target: Task, target_plan: TaskPlan, *, same_devices: bool
) -> Transfer:
    """Rollouts or scores from one task to the next over the best link between their nodes.

    Nothing is paid where both run on the same devices.
    """
    if source.kind == "generate":
        kind, num_bytes = "rollout", rollout_bytes(job.batch, sequences_per_prompt=target.sequences_per_prompt)
    else:
        kind, num_bytes = "scores", score_bytes(job.batch, sequences_per_prompt=source.sequences_per_prompt)
    seconds = 0.0
    if not same_devices:
        link = _best_link(job, _nodes(job, source_plan), _nodes(job, target_plan))
        seconds = link.latency_seconds + num_bytes / link.bytes_per_second
    return Transfer(kind=kind, source=source.name, target=target.name, num_bytes=num_bytes, seconds=seconds)


def _nodes(job: Job, plan: TaskPlan) -> tuple[int, ...]:
    return tuple(sorted({job.topology.devices[device].node for device in plan.devices}))


def _best_link(job: Job, sources: tuple[int, ...], targets: tuple[int, ...]) -> Link:
    links = job.topology.links_between(sources, targets)
    links += [job.topology.nodes[node].intra_link for node in sorted({*sources} & {*targets})]
    return min(links, key=lambda link: (-link.bytes_per_second, link.latency_seconds))


def weight_sync(
    job: Job, model: CostModel, source: Task, source_plan: TaskPlan, target: Task, target_plan: TaskPlan
) -> Transfer:
    """Weights from a role's train task to another task of the role.

    Every target node receives one copy of the bytes its replicas hold, from the node that reaches it fastest; a
    node's card carries all copies it sends or receives, so the busiest card decides. Then each device gets its
    shard over the node's own link. Nodes that train the model themselves skip the network.
    """
    size = DTYPE_BYTES[job.precision.dtype]
    whole = target.model.num_parameters * size
    sources = _nodes(job, source_plan)
    sent: dict[int, float] = {}
    slowest = 0.0
    local = 0.0
    received: dict[int, float] = {}
    for replica in target_plan.replicas:
        first_layer = 0
        for stage in replica.stages:
            stage_bytes = stage_parameters(target.model, first_layer, stage.num_layers) * size
            first_layer += stage.num_layers
            per_device = stage_bytes / stage.tensor_parallel
            for device in stage.devices:
                node = job.topology.devices[device].node
                received[node] = min(whole, received.get(node, 0.0) + per_device)
                link = job.topology.nodes[node].intra_link
                local = max(local, link.latency_seconds + per_device / link.bytes_per_second)
    for node, num_bytes in sorted(received.items()):
        if node in sources:
            continue
        nearest = min(
            sources, key=lambda each: (-job.topology.node_link(each, node).bytes_per_second, sent.get(each, 0.0), each)
        )
        link = job.topology.node_link(nearest, node)
        sent[nearest] = sent.get(nearest, 0.0) + num_bytes
        slowest = max(slowest, link.latency_seconds + num_bytes / link.bytes_per_second)
    for node, num_bytes in sent.items():
        slowest = max(slowest, num_bytes / job.topology.nodes[node].nic_bytes_per_second)
    kinds = {job.topology.devices[device].type.name for device in target_plan.devices}
    seconds = max(model.calibration(kind, "sync").seconds(slowest + local, 1, 0) for kind in kinds)
    return Transfer(
        kind="weights", source=source.name, target=target.name, num_bytes=float(sum(received.values())), seconds=seconds
    )


def switch_seconds(job: Job, task: Task, plan: TaskPlan, memory: Mapping[int, RankMemory]) -> float:
    """Seconds of moving a task's state between host and device around its interval, the slowest device deciding.

    Training state is written back to the host and fetched again; frozen weights are only fetched, since the host
    keeps its copy.
    """
    residency = plan.residency
    if residency.weights_when_idle != "host" and residency.optimizer_states != "host_when_idle":
        return 0.0
    worst = 0.0
    for device, rank in memory.items():
        host_link = job.topology.nodes[job.topology.devices[device].node].host_link_bytes_per_second
        moved = 0.0
        if task.kind == "train":
            if residency.optimizer_states == "host_when_idle":
                moved += 2 * rank.active["optimizer"]
            if residency.weights_when_idle == "host":
                moved += 2 * rank.sync["weights"]
        else:
            moved += rank.active["weights"]
        worst = max(worst, moved / host_link)
    return worst
