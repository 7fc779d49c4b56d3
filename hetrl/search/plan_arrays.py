"""A whole plan as arrays for the annealing kernel, and back.

Devices that tensor groups of any task hold together form a block; blocks move between nodes with everything that the
plan puts on them, so strategies, layers and shares stay valid. Devices that no task uses are blocks of their own. What
a block holds in memory is asked of the readable evaluator's residency; only its sums over intervals are formed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.generation import in_flight_tokens
from hetrl.cost.residency import RankMemory, task_memory
from hetrl.cost.tables import MICRO_BATCHES, TENSOR_DEGREES
from hetrl.plan.plan import OPTIMIZER_STATES, SHARDINGS, WEIGHTS_WHEN_IDLE, Group, Plan, TaskPlan
from hetrl.search.context import SearchContext
from hetrl.spec.devices import DTYPE_BYTES
from hetrl.spec.fleet_rules import running_problems
from hetrl.spec.job import Job
from hetrl.spec.topology import Topology
from hetrl.spec.workflow import Task
from hetrl.workload.memory import kv_bytes_per_token, stage_parameters

MOST_LINK_KINDS = 4096
MOST_STAGES = 64
MOST_NODE_DEVICES = 127
MOST_DEVICE_TYPES = 64
"""Sizes that the kernel is built for."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


class PlanArrays(NamedTuple):
    """``B`` blocks, ``A`` tasks, ``R`` replicas of all tasks, ``S`` tensor groups of all replicas, stage by stage."""

    block_devices: tuple[tuple[int, ...], ...]  # [B] in the plan they were read from
    block_node: Ints  # [B]
    block_size: Ints  # [B]
    block_group: Ints  # [B] -1 for devices that no group has
    block_types: NDArray[np.int64]  # [B] bit set of device types that may carry the block
    block_need: Floats  # [B] bytes of its fullest device, KV pools excluded
    block_host: NDArray[np.int64]  # [B] bytes of host RAM
    task_settings: Ints  # [A, 10] see `_settings`
    replica_task: Ints  # [R]
    replica_prompts: Ints  # [R]
    replica_useful: Floats  # [R] tokens that a KV pool has use for
    first_slot: Ints  # [R + 1]
    slot_block: Ints  # [S]
    slot_layers: Ints  # [S]
    slot_need: Floats  # [S] bytes on its fullest device beside the KV pool, in the intervals that the pool is held
    slot_kv: Floats  # [S] KV bytes of one token
    slot_moved: Floats  # [S] bytes between host and device around the task's interval
    slot_bytes: Floats  # [S] weights of one device, as a weight sync brings them


def plan_arrays(context: SearchContext, plan: Plan) -> PlanArrays | None:
    """Lower a plan; None where it lies outside what the kernel covers.

    Not covered: tensor groups over several nodes, several tensor degrees in one task, micro-batches that the tables do
    not list, two engines in one group, a task without devices.
    """
    job, topology = context.job, context.job.topology
    links = int(context.tables.link_kind.max()) + 1
    if links > MOST_LINK_KINDS or not _covered_fleet(topology):
        return None
    if not all(_covered(job, each) for each in plan.tasks):
        return None
    engines = {each.name for each in job.workflow.tasks if each.kind == "generate"}
    if any(len(engines & set(group.tasks)) > 1 for group in plan.groups):
        return None
    tasks = [plan.task(task.name) for task in job.workflow.tasks]
    blocks, block_of = _blocks(topology.num_devices, tasks)
    memory = _Memory(job, plan)
    group_of = {device: number for number, group in enumerate(plan.groups) for device in group.devices}
    slots = _Slots(job, tasks, block_of, memory)
    nodes = [topology.devices[devices[0]].node for devices in blocks]
    areas: dict[tuple[int, ...], int] = {}
    return PlanArrays(
        block_devices=tuple(blocks),
        block_node=_ints(nodes),
        block_size=_ints([len(devices) for devices in blocks]),
        block_group=_ints([group_of.get(devices[0], -1) for devices in blocks]),
        block_types=_allowed_types(job, plan, blocks, nodes),
        block_need=_floats([max(memory.most(device) for device in devices) for devices in blocks]),
        block_host=np.array(
            [sum(round(rank.host) for device in devices for rank in memory.here(device)) for devices in blocks],
            dtype=np.int64,
        ),
        task_settings=_ints([_settings(plan, each, areas) for each in tasks]),
        **slots.arrays(),
    )


def moved_plan(context: SearchContext, plan: Plan, arrays: PlanArrays, nodes: Iterable[int]) -> Plan:
    """Return the plan with its blocks on other nodes; blocks take a node's devices one after the other."""
    topology = context.topology
    taken = list(topology.first_device)
    device: dict[int, int] = {}
    for block, node in zip(arrays.block_devices, nodes, strict=True):
        for each in block:
            device[each] = taken[node]
            taken[node] += 1
    return Plan(
        groups=tuple(
            Group(tasks=group.tasks, devices=tuple(sorted(device[each] for each in group.devices)))
            for group in plan.groups
        ),
        tasks=tuple(
            replace(
                task,
                replicas=tuple(
                    replace(
                        replica,
                        stages=tuple(
                            replace(stage, devices=tuple(device[each] for each in stage.devices))
                            for stage in replica.stages
                        ),
                    )
                    for replica in task.replicas
                ),
            )
            for task in plan.tasks
        ),
    )


def _ints(values: object) -> Ints:
    return np.ascontiguousarray(values, dtype=np.int32)


def _floats(values: object) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float64)


def _covered_fleet(topology: Topology) -> bool:
    return (
        len({node.device_type.name for node in topology.nodes}) <= MOST_DEVICE_TYPES
        and max(node.num_devices for node in topology.nodes) <= MOST_NODE_DEVICES
    )


def _covered(job: Job, plan: TaskPlan) -> bool:
    topology = job.topology
    stages = [stage for replica in plan.replicas for stage in replica.stages]
    degrees = {stage.tensor_parallel for stage in stages}
    kind = job.workflow.task(plan.task).kind
    return (
        len(degrees) == 1
        and degrees <= set(TENSOR_DEGREES)
        and (kind == "generate" or plan.micro_batch_size in MICRO_BATCHES)
        and max(len(replica.stages) for replica in plan.replicas) <= MOST_STAGES
        and all(len({topology.devices[device].node for device in stage.devices}) == 1 for stage in stages)
    )


def _blocks(num_devices: int, tasks: list[TaskPlan]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Devices held together by tensor groups, in order of their first; and the block of every device."""
    root = list(range(num_devices))

    def find(device: int) -> int:
        while root[device] != device:
            root[device] = root[root[device]]
            device = root[device]
        return device

    for stage in (stage for task in tasks for replica in task.replicas for stage in replica.stages):
        first = find(stage.devices[0])
        for device in stage.devices[1:]:
            root[find(device)] = first
            first = find(first)
    members: dict[int, list[int]] = {}
    for device in range(num_devices):
        members.setdefault(find(device), []).append(device)
    blocks = [tuple(devices) for devices in members.values()]
    block_of = [0] * num_devices
    for number, devices in enumerate(blocks):
        for device in devices:
            block_of[device] = number
    return blocks, block_of


def _settings(plan: Plan, task: TaskPlan, areas: dict[tuple[int, ...], int]) -> tuple[int, ...]:
    """Integers that describe a task's strategy: see `TaskState` in ``plan_state.pxd``."""
    degree = task.replicas[0].stages[0].tensor_parallel
    listed = task.micro_batch_size in MICRO_BATCHES
    return (
        TENSOR_DEGREES.index(degree),
        degree,
        MICRO_BATCHES.index(task.micro_batch_size) if listed else 0,
        task.micro_batch_size,
        int(task.recompute),
        SHARDINGS.index(task.sharding),
        WEIGHTS_WHEN_IDLE.index(task.residency.weights_when_idle),
        OPTIMIZER_STATES.index(task.residency.optimizer_states),
        plan.group_of(task.task),
        areas.setdefault(task.devices, len(areas)),
    )


def _allowed_types(job: Job, plan: Plan, blocks: list[tuple[int, ...]], nodes: list[int]) -> NDArray[np.int64]:
    """Device types of the vendor that a block stands on now, and that can do what its tasks do."""
    types = job.topology.device_types
    uses: dict[int, set[str]] = {}
    for task in plan.tasks:
        for device in task.devices:
            uses.setdefault(device, set()).add(job.workflow.task(task.task).kind)
    can: dict[frozenset[str], list[int]] = {}
    masks = []
    for devices, node in zip(blocks, nodes, strict=True):
        wanted = frozenset(use for device in devices for use in uses.get(device, ()))
        if wanted not in can:
            can[wanted] = [
                number
                for number, kind in enumerate(types)
                if not any(running_problems(kind, use, job.precision) for use in wanted)
            ]
        vendor = job.topology.nodes[node].device_type.vendor
        masks.append(sum(1 << number for number in can[wanted] if types[number].vendor == vendor))
    return np.array(masks, dtype=np.uint64).view(np.int64)


class _Memory:
    """What every device holds: the ranks of its tasks, and the fullest interval."""

    def __init__(self, job: Job, plan: Plan) -> None:
        self.job = job
        self.ranks = {task.task: task_memory(job, job.workflow.task(task.task), task) for task in plan.tasks}
        self.tasks: dict[int, tuple[str, ...]] = {
            device: group.tasks for group in plan.groups for device in group.devices
        }
        self.known: dict[tuple[int, ...], Mapping[str, float]] = {}

    def names(self, device: int) -> list[str]:
        return [name for name in self.tasks.get(device, ()) if device in self.ranks[name]]

    def here(self, device: int) -> list[RankMemory]:
        return [self.ranks[name][device] for name in self.names(device)]

    def intervals(self, device: int) -> Mapping[str, float]:
        """Bytes in every interval: one of each task, and the weight sync."""
        names, ranks = self.names(device), self.here(device)
        key = tuple(id(rank) for rank in ranks)
        if key not in self.known:
            idle = [rank.idle_bytes for rank in ranks]
            found = {
                name: rank.active_bytes + sum(idle[:number]) + sum(idle[number + 1 :])
                for number, (name, rank) in enumerate(zip(names, ranks, strict=True))
            }
            workflow = self.job.workflow
            if workflow.online and any(workflow.task(name).kind != "score" for name in names):
                found[""] = sum(rank.sync_bytes for rank in ranks)
            self.known[key] = found
        return self.known[key]

    def most(self, device: int) -> float:
        return max(self.intervals(device).values(), default=0.0)


class _Slots:
    """Replicas and tensor groups of all tasks, one after the other."""

    def __init__(self, job: Job, tasks: list[TaskPlan], block_of: list[int], memory: _Memory) -> None:
        self.job, self.memory = job, memory
        self.replicas: list[tuple[int, int, float]] = []
        self.first = [0]
        self.slots: list[tuple[float, ...]] = []
        for number, plan in enumerate(tasks):
            task = job.workflow.task(plan.task)
            figures = _remembered(self._stage_figures)
            for replica in plan.replicas:
                self.replicas.append((number, replica.num_prompts, self._useful(task, plan, replica.num_prompts)))
                first_layer = 0
                for stage in replica.stages:
                    kv, weights = figures(task, first_layer, stage.num_layers, stage.tensor_parallel)
                    first_layer += stage.num_layers
                    self.slots.append(
                        (
                            block_of[stage.devices[0]],
                            stage.num_layers,
                            self._beside_kv(task, plan, stage.devices),
                            kv,
                            _moved_bytes(task, plan, memory.ranks[plan.task][stage.devices[0]]),
                            weights,
                        )
                    )
                self.first.append(len(self.slots))

    def arrays(self) -> dict[str, Any]:
        task, prompts, useful = zip(*self.replicas, strict=True)
        block, layers, need, kv, moved, weights = zip(*self.slots, strict=True)
        return {
            "replica_task": _ints(task),
            "replica_prompts": _ints(prompts),
            "replica_useful": _floats(useful),
            "first_slot": _ints(self.first),
            "slot_block": _ints(block),
            "slot_layers": _ints(layers),
            "slot_need": _floats(need),
            "slot_kv": _floats(kv),
            "slot_moved": _floats(moved),
            "slot_bytes": _floats(weights),
        }

    def _stage_figures(self, task: Task, first_layer: int, num_layers: int, degree: int) -> tuple[float, float]:
        """KV bytes of a token, and bytes of weights on one device."""
        weights = stage_parameters(task.model, first_layer, num_layers) * DTYPE_BYTES[self.job.precision.dtype] / degree
        if task.kind != "generate":
            return 0.0, weights
        each = kv_bytes_per_token(
            task.model,
            first_layer=first_layer,
            num_layers=num_layers,
            tensor_parallel=degree,
            bytes_per_element=DTYPE_BYTES[self.job.precision.kv_cache_dtype],
        )
        return each, weights

    def _useful(self, task: Task, plan: TaskPlan, num_prompts: int) -> float:
        if task.kind != "generate":
            return 0.0
        sequences = min(plan.micro_batch_size, num_prompts * task.sequences_per_prompt)
        return max(
            sequences * in_flight_tokens(self.job.batch, task.sequences_per_prompt),
            float(self.job.batch.max_sequence_tokens),
        )

    def _beside_kv(self, task: Task, plan: TaskPlan, devices: tuple[int, ...]) -> float:
        """Most bytes beside a KV pool: in all intervals if the engine stays resident, else while it generates."""
        if task.kind != "generate":
            return 0.0
        if plan.residency.weights_when_idle == "resident":
            return max(self.memory.most(device) for device in devices)
        return max(self.memory.intervals(device)[plan.task] for device in devices)


def _moved_bytes(task: Task, plan: TaskPlan, rank: RankMemory) -> float:
    """Bytes over the host link around a task's interval (see `hetrl.cost.transfers.switch_seconds`)."""
    residency = plan.residency
    if residency.weights_when_idle != "host" and residency.optimizer_states != "host_when_idle":
        return 0.0
    if task.kind != "train":
        return rank.active["weights"]
    moved = 2 * rank.active["optimizer"] if residency.optimizer_states == "host_when_idle" else 0.0
    return moved + (2 * rank.sync["weights"] if residency.weights_when_idle == "host" else 0.0)


def _remembered(
    function: Callable[[Task, int, int, int], tuple[float, float]],
) -> Callable[[Task, int, int, int], tuple[float, float]]:
    known: dict[tuple[str, int, int, int], tuple[float, float]] = {}

    def call(task: Task, first_layer: int, num_layers: int, degree: int) -> tuple[float, float]:
        key = (task.name, first_layer, num_layers, degree)
        if key not in known:
            known[key] = function(task, *key[1:])
        return known[key]

    return call
