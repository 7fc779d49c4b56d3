"""Memory of a plan: what every device holds in every interval, what every host holds, and the room for KV caches.

The intervals of a group are those in which one of its tasks runs, and the weight sync. In a task's interval its own
active terms are held, and of every other task of the group what it keeps while idle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hetrl.cost.generation import in_flight_tokens
from hetrl.plan.plan import Group, Plan, TaskPlan
from hetrl.spec.devices import DTYPE_BYTES
from hetrl.spec.job import Job
from hetrl.spec.workflow import Task
from hetrl.workload.memory import (
    allowances,
    kv_bytes_per_token,
    scoring_activation_bytes,
    stage_activation_bytes,
    stage_parameters,
    train_state,
)

SYNC_INTERVAL = "weight_sync"
PREFILL_ACTIVATION_TOKENS = 8192


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes of one task on one device: named terms while it runs, while weights are synced, and while it is idle."""

    active: Mapping[str, float]
    sync: Mapping[str, float]
    idle: Mapping[str, float]
    host: float

    @cached_property
    def active_bytes(self) -> float:
        """All active terms."""
        return sum(self.active.values())

    @cached_property
    def sync_bytes(self) -> float:
        """All terms of the weight sync."""
        return sum(self.sync.values())

    @cached_property
    def idle_bytes(self) -> float:
        """All idle terms."""
        return sum(self.idle.values())


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Memory of a whole plan.

    Parameters
    ----------
    devices
        device id -> interval -> term -> bytes. Terms of idle tasks are called ``<task> (idle)``.
    limits
        device id -> bytes allowed after the safety margin.
    hosts, host_limits
        node index -> bytes.
    kv_tokens
        generate task -> per replica, tokens that its KV pool holds.
    """

    devices: Mapping[int, Mapping[str, Mapping[str, float]]]
    limits: Mapping[int, float]
    hosts: Mapping[int, float]
    host_limits: Mapping[int, float]
    kv_tokens: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a rank stands in its task: its stage's layers, tensor degree, stages from here to the end, and share."""

    first_layer: int
    num_layers: int
    tensor_parallel: int
    stages_to_end: int
    num_prompts: int
    vendor: str
    spans_devices: bool


def trains_eagerly(job: Job) -> bool:
    """Whether training keeps the activations of PyTorch without fused operators: on a fleet of CPUs."""
    return all(node.device_type.vendor == "cpu" for node in job.topology.nodes)


def device_limit(job: Job, device: int) -> float:
    """Usable bytes of a device after the safety margin."""
    return job.topology.devices[device].type.memory_bytes * (1.0 - job.optimizer.memory_safety_margin)


def task_memory(job: Job, task: Task, plan: TaskPlan) -> dict[int, RankMemory]:
    """Memory of one task on each of its devices, KV pools excluded."""
    builders = {"train": _train_rank, "score": _score_rank, "generate": _generate_rank}
    ranks: dict[int, RankMemory] = {}
    known: dict[RankPlace, RankMemory] = {}
    spans_devices = sum(len(replica.devices) for replica in plan.replicas) > 1
    for replica in plan.replicas:
        first_layer = 0
        for number, stage in enumerate(replica.stages):
            place = RankPlace(
                first_layer=first_layer,
                num_layers=stage.num_layers,
                tensor_parallel=stage.tensor_parallel,
                stages_to_end=len(replica.stages) - number,
                num_prompts=replica.num_prompts,
                vendor=job.topology.devices[stage.devices[0]].type.vendor,
                spans_devices=spans_devices,
            )
            if place not in known:
                known[place] = builders[task.kind](job, task, plan, place)
            for device in stage.devices:
                ranks[device] = known[place]
            first_layer += stage.num_layers
    return ranks


def _process_terms(place: RankPlace) -> dict[str, float]:
    allowed = allowances(place.vendor)
    terms = {"process": float(allowed.process_bytes)}
    if place.spans_devices:
        terms["communication"] = float(allowed.communication_bytes)
    return terms


def _train_rank(job: Job, task: Task, plan: TaskPlan, place: RankPlace) -> RankMemory:
    state = train_state(
        task.model,
        job.precision,
        first_layer=place.first_layer,
        num_layers=place.num_layers,
        tensor_parallel=place.tensor_parallel,
        num_replicas=len(plan.replicas),
        sharding=plan.sharding,
    )
    sequences = place.num_prompts * task.sequences_per_prompt / job.batch.num_mini_batches
    micro_batch = max(1, min(plan.micro_batch_size, math.ceil(sequences)))
    num_micro_batches = max(1, math.ceil(sequences / micro_batch))
    activations = stage_activation_bytes(
        task.model,
        first_layer=place.first_layer,
        num_layers=place.num_layers,
        tensor_parallel=place.tensor_parallel,
        micro_batch_size=micro_batch,
        tokens=job.batch.max_sequence_tokens,
        micro_batches_in_flight=min(num_micro_batches, place.stages_to_end),
        recompute=plan.recompute,
        bytes_per_element=DTYPE_BYTES[job.precision.dtype],
        eager=trains_eagerly(job),
    )
    allowed = allowances(place.vendor)
    process = _process_terms(place)
    where = plan.residency.optimizer_states
    weights_stay = plan.residency.weights_when_idle == "resident"
    gathered = 0.0
    if plan.sharding == "fsdp":  # two layers' weights are gathered at a time
        largest = max(
            layer.num_parameters
            for layer in task.model.layers[place.first_layer : place.first_layer + place.num_layers]
        )
        gathered = 2 * largest * DTYPE_BYTES[job.precision.dtype] / place.tensor_parallel
    active = {
        "weights": state.weights + gathered,
        "gradients": state.gradients,
        "optimizer": 0.0 if where == "host" else state.optimizer,
        "activations": activations * (1.0 + allowed.fragmentation),
        **process,
    }
    idle = {
        "weights": state.weights if weights_stay else 0.0,
        "optimizer": state.optimizer if where == "device" else 0.0,
        **process,
    }
    sync = {**idle, "weights": state.weights}
    host = float(allowed.host_process_bytes)
    host += state.optimizer if where != "device" else 0.0
    host += 0.0 if weights_stay else state.weights
    return RankMemory(active=active, sync=sync, idle=idle, host=host)


def _score_rank(job: Job, task: Task, plan: TaskPlan, place: RankPlace) -> RankMemory:
    size = DTYPE_BYTES[job.precision.dtype]
    weights = stage_parameters(task.model, place.first_layer, place.num_layers) * size / place.tensor_parallel
    activations = scoring_activation_bytes(
        task.model,
        tensor_parallel=place.tensor_parallel,
        micro_batch_size=plan.micro_batch_size,
        tokens=job.batch.max_sequence_tokens,
        last_stage=place.first_layer + place.num_layers == task.model.num_layers,
        bytes_per_element=size,
    )
    allowed = allowances(place.vendor)
    where = plan.residency.weights_when_idle
    process = {} if where == "shared" else _process_terms(place)
    own_weights = 0.0 if where == "shared" else weights
    active = {"weights": own_weights, "activations": activations * (1.0 + allowed.fragmentation), **process}
    idle = {"weights": own_weights if where == "resident" else 0.0, **process}
    trained = any(other.kind == "train" and other.role == task.role for other in job.workflow.tasks)
    sync = {**idle, "weights": own_weights} if trained else idle
    host = allowed.host_process_bytes if where != "shared" else 0.0
    return RankMemory(active=active, sync=sync, idle=idle, host=host + (weights if where == "host" else 0.0))


def _generate_rank(job: Job, task: Task, plan: TaskPlan, place: RankPlace) -> RankMemory:
    size = DTYPE_BYTES[job.precision.dtype]
    weights = stage_parameters(task.model, place.first_layer, place.num_layers) * size / place.tensor_parallel
    allowed = allowances(place.vendor)
    process = _process_terms(place)
    activations = scoring_activation_bytes(
        task.model,
        tensor_parallel=place.tensor_parallel,
        micro_batch_size=1,
        tokens=min(PREFILL_ACTIVATION_TOKENS, job.batch.prompt_tokens * max(1, place.num_prompts)),
        last_stage=False,
        bytes_per_element=size,
    )
    loaded = {"weights": weights, "engine": float(allowed.engine_bytes), **process}
    active = {**loaded, "activations": activations * (1.0 + allowed.fragmentation)}
    stays = plan.residency.weights_when_idle == "resident"
    return RankMemory(active=active, sync=loaded, idle=loaded if stays else process, host=allowed.host_process_bytes)


def plan_memory(job: Job, plan: Plan) -> MemoryUse:
    """Memory of every device and host, with KV pools as large as they are useful and fit."""
    ranks = {task.task: task_memory(job, job.workflow.task(task.task), task) for task in plan.tasks}
    devices: dict[int, dict[str, dict[str, float]]] = {}
    kv_tokens: dict[str, tuple[float, ...]] = {}
    for group in plan.groups:
        usage = _group_usage(job, group, ranks)
        devices.update(usage)
        for name in group.tasks:
            if job.workflow.task(name).kind == "generate":
                kv_tokens[name] = _place_kv_pools(job, plan.task(name), usage)
    hosts = dict.fromkeys(range(len(job.topology.nodes)), 0.0)
    for by_device in ranks.values():
        for device, rank in by_device.items():
            hosts[job.topology.devices[device].node] += rank.host
    return MemoryUse(
        devices=devices,
        limits={device: device_limit(job, device) for device in devices},
        hosts=hosts,
        host_limits={node: float(each.host_ram_bytes) for node, each in enumerate(job.topology.nodes)},
        kv_tokens=kv_tokens,
    )


def _group_usage(
    job: Job, group: Group, ranks: Mapping[str, Mapping[int, RankMemory]]
) -> dict[int, dict[str, dict[str, float]]]:
    usage: dict[int, dict[str, dict[str, float]]] = {}
    for device in group.devices:
        here = {name: ranks[name][device] for name in group.tasks if device in ranks[name]}
        intervals: dict[str, dict[str, float]] = {}
        for name, rank in here.items():
            terms = dict(rank.active)
            for other, idle in here.items():
                if other != name and idle.idle_bytes > 0:
                    terms[f"{other} (idle)"] = idle.idle_bytes
            intervals[name] = terms
        if job.workflow.online and any(job.workflow.task(name).kind in ("train", "generate") for name in here):
            intervals[SYNC_INTERVAL] = {name: sum(rank.sync.values()) for name, rank in here.items()}
        usage[device] = intervals
    return usage


def _place_kv_pools(job: Job, plan: TaskPlan, usage: dict[int, dict[str, dict[str, float]]]) -> tuple[float, ...]:
    """Add the KV pool of every replica to ``usage``; return the tokens each holds."""
    task = job.workflow.task(plan.task)
    stays = plan.residency.weights_when_idle == "resident"
    element = DTYPE_BYTES[job.precision.kv_cache_dtype]
    tokens = []
    for replica in plan.replicas:
        sequences = min(plan.micro_batch_size, replica.num_prompts * task.sequences_per_prompt)
        useful = max(
            sequences * in_flight_tokens(job.batch, task.sequences_per_prompt), float(job.batch.max_sequence_tokens)
        )
        per_token = []
        first_layer = 0
        fits = useful
        for stage in replica.stages:
            each = kv_bytes_per_token(
                task.model,
                first_layer=first_layer,
                num_layers=stage.num_layers,
                tensor_parallel=stage.tensor_parallel,
                bytes_per_element=element,
            )
            per_token.append(each)
            first_layer += stage.num_layers
            for device in stage.devices:
                intervals = usage[device] if stays else {plan.task: usage[device][plan.task]}
                room = min(device_limit(job, device) - sum(terms.values()) for terms in intervals.values())
                fits = min(fits, room / each)
        held = math.floor(max(0.0, fits))
        tokens.append(float(held))
        for stage, each in zip(replica.stages, per_token, strict=True):
            for device in stage.devices:
                names = list(usage[device]) if stays else [plan.task]
                for name in names:
                    usage[device][name]["kv_cache" if name == plan.task else f"{plan.task} KV cache (idle)"] = (
                        held * each
                    )
    return tuple(tokens)
