"""Level 3: how the tasks of one group share their devices.

For every task of the group a short list of options (layout, micro-batch, recomputation, sharding, residency) that no
other option beats in time, active memory and idle memory at once; then the combination with the smallest total time
that holds in every interval on every node. Generation comes last, since its KV pool lives in the room that is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.evaluate import task_estimate
from hetrl.cost.generation import in_flight_tokens, replica_generation
from hetrl.cost.residency import RankMemory, device_limit, task_memory
from hetrl.cost.scoring import replica_scoring_seconds
from hetrl.cost.training import replica_training
from hetrl.plan.capabilities import CAPABILITIES
from hetrl.plan.plan import Replica, Residency, Stage, TaskPlan
from hetrl.search.context import DeviceCounts, SearchContext
from hetrl.search.level2_parallelism import Layout, layouts
from hetrl.search.shares import balanced_shares
from hetrl.spec.devices import DTYPE_BYTES
from hetrl.spec.workflow import Task
from hetrl.workload.memory import kv_bytes_per_token

TRAIN_MICRO_BATCHES = (1, 2, 4, 8, 16)
SCORE_MICRO_BATCHES = (1, 4, 16)
ENGINE_CONCURRENCY = 256
MAX_OPTIONS_PER_TASK = 16
MAX_COMBINATIONS = 20_000

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOption:
    """One way to run a task: its plan, its seconds, and per node the largest bytes of any of its devices."""

    plan: TaskPlan
    seconds: float
    active: FloatArray
    idle: FloatArray
    sync: FloatArray
    host: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChoice:
    """The chosen plans of a group's tasks and their seconds."""

    plans: tuple[TaskPlan, ...]
    seconds: tuple[float, ...]
    host: FloatArray


class Colocation:
    """Options and combinations, memoised by (task or group, devices per node)."""

    def __init__(self, context: SearchContext) -> None:
        self.context = context
        self._options: dict[tuple[str, DeviceCounts], tuple[TaskOption, ...]] = {}
        self._engines: dict[tuple[str, DeviceCounts], tuple[TaskOption, ...]] = {}
        self._groups: dict[tuple[tuple[str, ...], DeviceCounts], GroupChoice | None] = {}
        self._limits = np.array(
            [device_limit(context.job, context.topology.devices_of(node)[0]) for node in context.nodes]
        )

    # --- options of one task -----------------------------------------------------------------------------------

    def options(self, task: Task, counts: DeviceCounts) -> tuple[TaskOption, ...]:
        """Undominated options of a training or scoring task, fastest first."""
        key = (task.name, counts)
        if key not in self._options:
            candidates: list[TaskOption] = []
            for layout in layouts(self.context, task, counts):
                candidates.extend(self._layout_options(task, layout))
            self._options[key] = self._undominated(candidates)
        return self._options[key]

    def _layout_options(self, task: Task, layout: Layout) -> Iterator[TaskOption]:
        if task.kind == "score":
            for micro_batch in SCORE_MICRO_BATCHES:
                for idle in self._score_residencies(layout):
                    yield from self._option(task, layout, micro_batch_size=micro_batch, residency=idle)
            return
        # ZeRO-1 moves the same bytes as a plain all-reduce and needs less memory, so it replaces it where it can run
        shardings: tuple[str, ...] = ("none",)
        if len(layout.replicas) > 1 and not self.context.job.optimizer.executable:
            shardings = ("zero1", "fsdp")
        for micro_batch in TRAIN_MICRO_BATCHES:
            sequences = self.context.job.batch.num_prompts * task.sequences_per_prompt
            if micro_batch > 1 and micro_batch * len(layout.replicas) * self.context.job.batch.num_mini_batches > sequences:
                break
            for recompute in (False, True):
                for sharding in shardings:
                    for residency in self._train_residencies(layout):
                        yield from self._option(
                            task,
                            layout,
                            micro_batch_size=micro_batch,
                            recompute=recompute,
                            sharding=sharding,
                            residency=residency,
                        )

    def _has_separate_host(self, layout: Layout) -> bool:
        device = self.context.topology.devices[layout.replicas[0][0][1][0]]
        return device.type.vendor != "cpu"

    def _score_residencies(self, layout: Layout) -> Iterator[Residency]:
        yield Residency()
        if self._has_separate_host(layout):
            yield Residency(weights_when_idle="host")

    def _train_residencies(self, layout: Layout) -> Iterator[Residency]:
        yield Residency()
        if self._has_separate_host(layout):
            yield Residency(optimizer_states="host_when_idle")
            yield Residency(optimizer_states="host_when_idle", weights_when_idle="host")
            yield Residency(optimizer_states="host")
            yield Residency(optimizer_states="host", weights_when_idle="host")

    def _option(
        self,
        task: Task,
        layout: Layout,
        *,
        micro_batch_size: int,
        recompute: bool = False,
        sharding: str = "none",
        residency: Residency,
        kv_tokens: Sequence[float] = (),
    ) -> Iterator[TaskOption]:
        """The option with balanced shares, if it is supported and its active memory alone fits."""
        plan = TaskPlan(
            task=task.name,
            replicas=_replicas(layout, [1] * len(layout.replicas)),
            micro_batch_size=micro_batch_size,
            recompute=recompute,
            sharding=sharding,
            residency=residency,
        )
        if self.context.job.optimizer.executable and any(
            not each.supported and each.asked_by(task.kind, plan) for each in CAPABILITIES
        ):
            self.context.counts.cuts["CAPABILITY"] += 1
            return
        # memory depends on the shares only through the number of micro-batches in flight: take the most
        full = replace(plan, replicas=_replicas(layout, [self.context.job.batch.num_prompts] * len(layout.replicas)))
        ranks = task_memory(self.context.job, task, full)
        if self._exceeds(ranks):
            self.context.counts.cuts["DEVICE_MEMORY"] += 1
            return
        shares = balanced_shares(
            self.context.job.batch.num_prompts,
            [self._replica_class(replica) for replica in layout.replicas],
            lambda index, prompts: self._replica_seconds(task, plan, layout, index, prompts, kv_tokens),
        )
        if shares is None:
            self.context.counts.cuts["KV_ROOM"] += 1
            return
        placed = replace(plan, replicas=_replicas(layout, shares))
        self.context.counts.evaluations += 1
        seconds = task_estimate(self.context.job, task, placed, self.context.costs, tuple(kv_tokens)).seconds
        if math.isinf(seconds):
            self.context.counts.cuts["KV_ROOM"] += 1
            return
        active, idle, sync, host = self._per_node(ranks)
        yield TaskOption(plan=placed, seconds=seconds, active=active, idle=idle, sync=sync, host=host)

    def _replica_class(self, replica: Sequence[tuple[int, tuple[int, ...]]]) -> tuple[tuple[int, str, int], ...]:
        topology = self.context.topology
        return tuple(
            (layers, topology.devices[devices[0]].type.name, len({topology.devices[each].node for each in devices}))
            for layers, devices in replica
        )

    def _replica_seconds(
        self, task: Task, plan: TaskPlan, layout: Layout, index: int, prompts: int, kv_tokens: Sequence[float]
    ) -> float:
        context = self.context
        replica = _replicas(layout, [prompts] * len(layout.replicas))[index]
        batch = context.job.batch
        if task.kind == "train":
            cost = replica_training(context.costs, context.topology, batch, task, plan, replica)
            return cost.old_log_prob_seconds + batch.num_epochs * batch.num_mini_batches * cost.pipeline_seconds
        if task.kind == "score":
            return replica_scoring_seconds(context.costs, context.topology, batch, task, plan, replica)
        return replica_generation(
            context.costs, context.topology, batch, task, plan, replica, kv_tokens[index]
        ).seconds

    def _exceeds(self, ranks: dict[int, RankMemory]) -> bool:
        devices = self.context.topology.devices
        return any(sum(rank.active.values()) > self._limits[devices[device].node] for device, rank in ranks.items())

    def _per_node(self, ranks: dict[int, RankMemory]) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        active, idle, sync, host = (np.zeros(len(self.context.nodes)) for _ in range(4))
        for device, rank in ranks.items():
            node = self.context.topology.devices[device].node
            active[node] = max(active[node], sum(rank.active.values()))
            idle[node] = max(idle[node], rank.idle_bytes)
            sync[node] = max(sync[node], sum(rank.sync.values()))
            host[node] += rank.host
        return active, idle, sync, host

    def _undominated(self, options: Sequence[TaskOption]) -> tuple[TaskOption, ...]:
        """Pareto front over seconds, active and idle memory (largest fraction of any node) and host bytes."""
        scored = sorted(
            (
                (option.seconds, float((option.active / self._limits).max()), float((option.idle / self._limits).max()), float(option.host.max()), number)
                for number, option in enumerate(options)
            )
        )
        front: list[tuple[float, float, float, float, int]] = []
        for each in scored:
            if not any(kept[1] <= each[1] and kept[2] <= each[2] and kept[3] <= each[3] for kept in front):
                front.append(each)
        if len(front) > MAX_OPTIONS_PER_TASK:
            self.context.counts.cuts["FRONT_OVERFLOW"] += len(front) - MAX_OPTIONS_PER_TASK
            leanest = min(front, key=lambda each: each[2])
            smallest = min(front, key=lambda each: each[1])
            kept = front[: MAX_OPTIONS_PER_TASK - 2]
            front = kept + [each for each in dict.fromkeys((leanest, smallest)) if each not in kept]
        return tuple(options[each[4]] for each in front)

    # --- engines -------------------------------------------------------------------------------------------------

    def engine_options(self, task: Task, counts: DeviceCounts) -> tuple[TaskOption, ...]:
        """Generation layouts with all memory to themselves: a lower bound of their time with neighbours."""
        key = (task.name, counts)
        if key not in self._engines:
            found = []
            for layout in layouts(self.context, task, counts):
                alone = self._kv_tokens(task, layout, np.zeros(len(self.context.nodes)))
                if alone is None:
                    self.context.counts.cuts["KV_ROOM"] += 1
                    continue
                found.extend(
                    self._option(
                        task, layout, micro_batch_size=ENGINE_CONCURRENCY, residency=Residency(), kv_tokens=alone
                    )
                )
            found.sort(key=lambda option: option.seconds)
            self._engines[key] = tuple(found[:MAX_OPTIONS_PER_TASK])
        return self._engines[key]

    def _kv_tokens(self, task: Task, layout: Layout, taken: FloatArray) -> tuple[float, ...] | None:
        """Tokens that fit in every replica's KV pool beside ``taken`` bytes per node; None if any holds too few."""
        job = self.context.job
        plan = TaskPlan(
            task=task.name,
            replicas=_replicas(layout, even_prompts(job.batch.num_prompts, len(layout.replicas))),
            micro_batch_size=ENGINE_CONCURRENCY,
        )
        ranks = task_memory(job, task, plan)
        element = DTYPE_BYTES[job.precision.kv_cache_dtype]
        result = []
        for replica in layout.replicas:
            fits = math.inf
            first_layer = 0
            for layers, devices in replica:
                each = kv_bytes_per_token(
                    task.model, first_layer=first_layer, num_layers=layers, tensor_parallel=len(devices), bytes_per_element=element
                )
                first_layer += layers
                for device in devices:
                    node = self.context.topology.devices[device].node
                    room = self._limits[node] - taken[node] - sum(ranks[device].active.values())
                    fits = min(fits, room / each)
            useful = ENGINE_CONCURRENCY * in_flight_tokens(job.batch, task.sequences_per_prompt)
            held = math.floor(max(0.0, min(fits, max(useful, job.batch.max_sequence_tokens))))
            if held < job.batch.max_sequence_tokens:
                return None
            result.append(float(held))
        return tuple(result)

    # --- groups --------------------------------------------------------------------------------------------------

    def group(self, names: tuple[str, ...], counts: DeviceCounts) -> GroupChoice | None:
        """Best combination for a group of tasks on its devices, or None if none fits."""
        key = (names, counts)
        if key not in self._groups:
            self._groups[key] = self._combine(names, counts) if any(counts) else None
            if self._groups[key] is None:
                self.context.counts.cuts["GROUP_MEMORY"] += 1
        return self._groups[key]

    def _combine(self, names: tuple[str, ...], counts: DeviceCounts) -> GroupChoice | None:
        workflow = self.context.job.workflow
        tasks = sorted((workflow.task(name) for name in names), key=lambda task: ("train", "score", "generate").index(task.kind))
        lists: list[tuple[TaskOption, ...]] = []
        for task in tasks:
            found = self.engine_options(task, counts) if task.kind == "generate" else self.options(task, counts)
            if not found:
                return None
            lists.append(found)
        tails = [0.0] * (len(tasks) + 1)
        for index in range(len(tasks) - 1, -1, -1):
            tails[index] = tails[index + 1] + lists[index][0].seconds
        best: list[TaskOption] = []
        best_seconds = math.inf
        visited = 0

        def descend(index: int, chosen: list[TaskOption], seconds: float) -> None:
            nonlocal best, best_seconds, visited
            visited += 1
            if visited > MAX_COMBINATIONS or seconds + tails[index] >= best_seconds:
                return
            if index == len(tasks):
                best, best_seconds = list(chosen), seconds
                return
            for option in self._with_neighbours(tasks[index], lists[index], chosen, tasks, counts):
                if seconds + option.seconds + tails[index + 1] >= best_seconds:
                    if tasks[index].kind != "generate":
                        break
                    continue
                chosen.append(option)
                if self._fits(chosen):
                    descend(index + 1, chosen, seconds + option.seconds)
                chosen.pop()

        descend(0, [], 0.0)
        if visited > MAX_COMBINATIONS:
            self.context.counts.cuts["COMBINATION_OVERFLOW"] += 1
        if not best:
            return None
        by_name = {option.plan.task: option for option in best}
        ordered = [by_name[name] for name in names]
        return GroupChoice(
            plans=tuple(option.plan for option in ordered),
            seconds=tuple(option.seconds for option in ordered),
            host=np.sum([option.host for option in ordered], axis=0),
        )

    def _with_neighbours(
        self,
        task: Task,
        options: tuple[TaskOption, ...],
        chosen: Sequence[TaskOption],
        tasks: Sequence[Task],
        counts: DeviceCounts,
    ) -> Iterator[TaskOption]:
        """Options given what is already chosen: shared weights for a trained role, KV pools in the room that is left."""
        if task.kind == "score":
            trainer = next((each for each, kind in zip(chosen, tasks, strict=False) if kind.role == task.role and kind.kind == "train"), None)
            if trainer is not None:
                yield from self._shared_options(task, trainer)
            yield from options
            return
        if task.kind != "generate":
            yield from options
            return
        idle = np.sum([each.idle for each in chosen], axis=0) if chosen else np.zeros(len(self.context.nodes))
        held = idle
        for each in chosen:  # an engine that stays loaded must also leave room for every other task's own interval
            held = np.maximum(held, idle - each.idle + each.active)
            held = np.maximum(held, idle - each.idle + each.sync)
        for option in options:
            layout = _layout_of(option.plan)
            for weights_when_idle, taken in (("resident", held), ("dropped", idle)):
                if not chosen and weights_when_idle == "dropped":
                    continue
                tokens = self._kv_tokens(task, layout, taken)
                if tokens is None:
                    continue
                yield from self._option(
                    task,
                    layout,
                    micro_batch_size=ENGINE_CONCURRENCY,
                    residency=Residency(weights_when_idle=weights_when_idle),
                    kv_tokens=tokens,
                )

    def _shared_options(self, task: Task, trainer: TaskOption) -> Iterator[TaskOption]:
        """Scoring with the weights of the role's train task: the same stages on the same devices."""
        if trainer.plan.sharding == "fsdp" or trainer.plan.residency.weights_when_idle != "resident":
            return
        layout = _layout_of(trainer.plan)
        for micro_batch in SCORE_MICRO_BATCHES:
            yield from self._option(
                task, layout, micro_batch_size=micro_batch, residency=Residency(weights_when_idle="shared")
            )

    def _fits(self, chosen: Sequence[TaskOption]) -> bool:
        idle = np.sum([option.idle for option in chosen], axis=0)
        if any((idle - option.idle + option.active > self._limits).any() for option in chosen):
            return False
        if (np.sum([option.sync for option in chosen], axis=0) > self._limits).any():
            return False
        host = np.sum([option.host for option in chosen], axis=0)
        return bool((host <= [node.host_ram_bytes for node in self.context.topology.nodes]).all())


def even_prompts(num_prompts: int, num_replicas: int) -> list[int]:
    """Even shares, at least one prompt each (for sizing before shares are known)."""
    return [max(1, -(-num_prompts // num_replicas))] * num_replicas


def _replicas(layout: Layout, shares: Sequence[int]) -> tuple[Replica, ...]:
    return tuple(
        Replica(stages=tuple(Stage(num_layers=layers, devices=devices) for layers, devices in replica), num_prompts=share)
        for replica, share in zip(layout.replicas, shares, strict=True)
    )


def _layout_of(plan: TaskPlan) -> Layout:
    return Layout(
        replicas=tuple(tuple((stage.num_layers, stage.devices) for stage in replica.stages) for replica in plan.replicas)
    )
