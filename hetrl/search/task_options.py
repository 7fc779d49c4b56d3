"""Options of one task on given devices: its plan, its seconds, and what it holds per node.

An option combines a layout of level 2 with micro-batch, recomputation, sharding and residency. Only options that no
other option beats in time, active memory, idle memory and host memory at once are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.residency import RankMemory, device_limit, task_memory
from hetrl.cost.scoring import replica_scoring_seconds
from hetrl.cost.stages import replica_class
from hetrl.cost.training import ReplicaTraining, compose_training, replica_training
from hetrl.cost.transfers import switch_seconds
from hetrl.plan.capabilities import CAPABILITIES
from hetrl.plan.plan import Replica, Residency, Stage, TaskPlan
from hetrl.search.context import DeviceCounts, SearchContext
from hetrl.search.level2_parallelism import Layout, layouts
from hetrl.search.shares import balanced_shares
from hetrl.spec.workflow import Task

TRAIN_MICRO_BATCHES = (1, 2, 4, 8, 16)
SCORE_MICRO_BATCHES = (1, 4, 16)
MAX_OPTIONS_PER_TASK = 16
SLOW_LAYOUT_RATIO = 3.0
"""Layouts whose pipelines take longer than this times the fastest that fits are cut."""
RECOMPUTE_WORTH_FRACTION = 0.05
"""Recomputation is not tried where all activations are below this fraction of the device."""

OFFLOAD_WORTH_FRACTION = 0.05
"""Offloading is not tried where everything held while idle is below this fraction of the device."""

FloatArray = NDArray[np.float64]

DEVICE_RESIDENCIES = (Residency(),)
TRAIN_RESIDENCIES = (
    Residency(),
    Residency(optimizer_states="host_when_idle"),
    Residency(optimizer_states="host_when_idle", weights_when_idle="host"),
    Residency(optimizer_states="host"),
    Residency(optimizer_states="host", weights_when_idle="host"),
)
SCORE_RESIDENCIES = (Residency(), Residency(weights_when_idle="host"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskOption:
    """One way to run a task: its plan, its seconds, and per node the largest bytes of any of its devices.

    ``active``, ``idle`` and ``sync`` have one entry per node, ``host`` the node's host bytes.
    """

    plan: TaskPlan
    seconds: float
    active: FloatArray
    idle: FloatArray
    sync: FloatArray
    host: FloatArray


class TaskOptions:
    """Options of training and scoring tasks, memoised by (task, devices per node)."""

    def __init__(self, context: SearchContext) -> None:
        self.context = context
        self.limits = np.array(
            [device_limit(context.job, context.topology.devices_of(node)[0]) for node in context.nodes]
        )
        self._options: dict[tuple[str, DeviceCounts], tuple[TaskOption, ...]] = {}
        self._shared: dict[tuple[str, Layout], tuple[TaskOption, ...]] = {}
        self._training: dict[Hashable, ReplicaTraining] = {}
        self._scoring: dict[Hashable, float] = {}

    def options(self, task: Task, counts: DeviceCounts) -> tuple[TaskOption, ...]:
        """Undominated options, fastest first."""
        key = (task.name, counts)
        if key not in self._options:
            find = self._train_options if task.kind == "train" else self._score_options
            self._options[key] = self.undominated(list(find(task, counts)))
        return self._options[key]

    def shared_options(self, task: Task, trainer: TaskPlan) -> tuple[TaskOption, ...]:
        """Scoring with the weights of the role's train task: the same stages on the same devices.

        Empty where the trainer's weights are sharded over replicas or leave the device.
        """
        if trainer.sharding == "fsdp" or trainer.residency.weights_when_idle != "resident":
            return ()
        key = (task.name, layout_of(trainer))
        if key not in self._shared:
            shared = (Residency(weights_when_idle="shared"),)
            self._shared[key] = self.undominated(list(self._score_layout(task, key[1], shared)))
        return self._shared[key]

    # --- training ------------------------------------------------------------------------------------------------

    def _train_options(self, task: Task, counts: DeviceCounts) -> Iterator[TaskOption]:
        batch = self.context.job.batch
        sequences = batch.num_prompts * task.sequences_per_prompt
        fastest = math.inf
        choices = (False,) if self.context.job.optimizer.executable else (False, True)
        for layout in layouts(self.context, task, counts):
            for micro_batch in TRAIN_MICRO_BATCHES:
                if micro_batch > 1 and micro_batch * len(layout.replicas) * batch.num_mini_batches > sequences:
                    break
                leanest = self._leanest(layout, self._plan(task, layout, micro_batch_size=micro_batch, recompute=choices[-1]))
                if self.fitting_memory(task, leanest) is None:
                    break  # a larger micro-batch needs more
                for recompute in choices:
                    plan = replace(leanest, recompute=recompute, sharding="none", residency=Residency())
                    if recompute and self._activations_fraction(task, replace(plan, recompute=False)) < RECOMPUTE_WORTH_FRACTION:
                        continue
                    if not recompute and self.fitting_memory(task, self._leanest(layout, plan)) is None:
                        continue
                    found = list(self._train_variants(task, layout, plan, fastest))
                    fastest = min([fastest, *(option.seconds for option in found)])
                    yield from found

    def _leanest(self, layout: Layout, plan: TaskPlan) -> TaskPlan:
        """The plan with the sharding and residency that need the least device memory."""
        residency = self._residencies(layout, TRAIN_RESIDENCIES)[-1]
        return replace(plan, sharding=self._shardings(layout)[-1], residency=residency)

    def _train_variants(self, task: Task, layout: Layout, plan: TaskPlan, fastest: float) -> Iterator[TaskOption]:
        """Sharding and residency variants of one layout, all with the same pipelines."""

        def replica_seconds(replica: Replica) -> float:
            timed = self._train_replica(task, plan, replica)
            return timed.old_log_prob_seconds + self._num_updates * timed.pipeline_seconds

        replicas = replicas_with(layout, self._shares(layout, replica_seconds))
        slowest = max(replica_seconds(replica) for replica in replicas)
        if slowest > SLOW_LAYOUT_RATIO * fastest:
            self.context.counts.cuts["SLOW_LAYOUT"] += 1
            return
        timed = tuple(self._train_replica(task, plan, replica) for replica in replicas)
        for sharding in self._shardings(layout):
            for residency in self._residencies(layout, TRAIN_RESIDENCIES):
                variant = replace(plan, sharding=sharding, residency=residency)
                ranks = self.fitting_memory(task, variant)
                if ranks is None:
                    continue
                placed = replace(variant, replicas=replicas)
                training = compose_training(
                    self.context.costs, self.context.topology, self.context.job.batch, task, placed, timed
                )
                seconds = training.compute_seconds + training.communication_seconds
                yield self.option(task, placed, ranks, seconds)
                if self._idle_fraction(ranks) < OFFLOAD_WORTH_FRACTION:
                    break  # nothing worth moving to the host

    @property
    def _num_updates(self) -> int:
        return self.context.job.batch.num_epochs * self.context.job.batch.num_mini_batches

    def _train_replica(self, task: Task, plan: TaskPlan, replica: Replica) -> ReplicaTraining:
        key = (task.name, plan.micro_batch_size, plan.recompute, replica_class(self.context.topology, replica))
        if key not in self._training:
            self._training[key] = replica_training(
                self.context.costs, self.context.topology, self.context.job.batch, task, plan, replica
            )
        return self._training[key]

    def _shardings(self, layout: Layout) -> tuple[str, ...]:
        # ZeRO-1 moves the same bytes as a plain all-reduce and needs less memory, so it replaces it where it can run
        if len(layout.replicas) == 1 or self.context.job.optimizer.executable:
            return ("none",)
        return ("zero1", "fsdp")

    def _residencies(self, layout: Layout, wanted: tuple[Residency, ...]) -> tuple[Residency, ...]:
        device = self.context.topology.devices[layout.replicas[0][0][1][0]]
        return DEVICE_RESIDENCIES if device.type.vendor == "cpu" else wanted

    def _idle_fraction(self, ranks: dict[int, RankMemory]) -> float:
        devices = self.context.topology.devices
        return max(rank.idle_bytes / self.limits[devices[device].node] for device, rank in ranks.items())

    def _activations_fraction(self, task: Task, plan: TaskPlan) -> float:
        ranks = task_memory(self.context.job, task, plan)
        devices = self.context.topology.devices
        return max(rank.active["activations"] / self.limits[devices[device].node] for device, rank in ranks.items())

    # --- scoring -------------------------------------------------------------------------------------------------

    def _score_options(self, task: Task, counts: DeviceCounts) -> Iterator[TaskOption]:
        for layout in layouts(self.context, task, counts):
            yield from self._score_layout(task, layout, self._residencies(layout, SCORE_RESIDENCIES))

    def _score_layout(self, task: Task, layout: Layout, residencies: tuple[Residency, ...]) -> Iterator[TaskOption]:
        for micro_batch in SCORE_MICRO_BATCHES:
            plan = self._plan(task, layout, micro_batch_size=micro_batch)
            variants = [replace(plan, residency=residency) for residency in residencies]
            fitting = [(variant, ranks) for variant in variants if (ranks := self.fitting_memory(task, variant)) is not None]
            if not fitting:
                continue
            seconds_of = partial(self._score_replica, task, plan)
            replicas = replicas_with(layout, self._shares(layout, seconds_of))
            seconds = max(seconds_of(replica) for replica in replicas)
            for variant, ranks in fitting:
                yield self.option(task, replace(variant, replicas=replicas), ranks, seconds)

    def _score_replica(self, task: Task, plan: TaskPlan, replica: Replica) -> float:
        key = (task.name, plan.micro_batch_size, replica_class(self.context.topology, replica))
        if key not in self._scoring:
            self._scoring[key] = replica_scoring_seconds(
                self.context.costs, self.context.topology, self.context.job.batch, task, plan, replica
            )
        return self._scoring[key]

    # --- shared by all kinds -------------------------------------------------------------------------------------

    def _plan(self, task: Task, layout: Layout, *, micro_batch_size: int, recompute: bool = False) -> TaskPlan:
        """A plan with all prompts on every replica: memory depends on shares only through micro-batches in flight."""
        shares = [self.context.job.batch.num_prompts] * len(layout.replicas)
        return TaskPlan(
            task=task.name,
            replicas=replicas_with(layout, shares),
            micro_batch_size=micro_batch_size,
            recompute=recompute,
        )

    def fitting_memory(self, task: Task, plan: TaskPlan) -> dict[int, RankMemory] | None:
        """Memory per device, or None if the plan is not supported or its active memory alone exceeds a device."""
        if self.context.job.optimizer.executable and any(
            not each.supported and each.asked_by(task.kind, plan) for each in CAPABILITIES
        ):
            self.context.counts.cuts["CAPABILITY"] += 1
            return None
        ranks = task_memory(self.context.job, task, plan)
        devices = self.context.topology.devices
        if any(rank.active_bytes > self.limits[devices[device].node] for device, rank in ranks.items()):
            self.context.counts.cuts["DEVICE_MEMORY"] += 1
            return None
        return ranks

    def option(self, task: Task, plan: TaskPlan, ranks: dict[int, RankMemory], seconds: float) -> TaskOption:
        """Sum up an option; the phase switch is added to its seconds."""
        self.context.counts.evaluations += 1
        active, idle, sync, host = (np.zeros(len(self.context.nodes)) for _ in range(4))
        for device, rank in ranks.items():
            node = self.context.topology.devices[device].node
            active[node] = max(active[node], rank.active_bytes)
            idle[node] = max(idle[node], rank.idle_bytes)
            sync[node] = max(sync[node], rank.sync_bytes)
            host[node] += rank.host
        seconds += switch_seconds(self.context.job, task, plan, ranks)
        return TaskOption(plan=plan, seconds=seconds, active=active, idle=idle, sync=sync, host=host)

    def _shares(self, layout: Layout, seconds: Callable[[Replica], float]) -> tuple[int, ...]:
        topology = self.context.topology
        classes = [
            tuple((layers, tuple(topology.devices[each].node for each in devices)) for layers, devices in replica)
            for replica in layout.replicas
        ]
        shares = balanced_shares(
            self.context.job.batch.num_prompts,
            classes,
            lambda index, prompts: seconds(replica_with(layout.replicas[index], prompts)),
        )
        assert shares is not None  # training and scoring times are finite
        return shares

    def undominated(self, options: Sequence[TaskOption]) -> tuple[TaskOption, ...]:
        """Pareto front over seconds, active and idle memory (largest fraction of any node) and host bytes.

        A front longer than `MAX_OPTIONS_PER_TASK` keeps its fastest, and the leanest active and idle; the cut is counted.
        """
        scored = sorted(
            (
                option.seconds,
                float((option.active / self.limits).max()),
                float((option.idle / self.limits).max()),
                float(option.host.max()),
                number,
            )
            for number, option in enumerate(options)
        )
        front: list[tuple[float, float, float, float, int]] = []
        for each in scored:
            if not any(kept[1] <= each[1] and kept[2] <= each[2] and kept[3] <= each[3] for kept in front):
                front.append(each)
        if len(front) > MAX_OPTIONS_PER_TASK:
            self.context.counts.cuts["FRONT_OVERFLOW"] += len(front) - MAX_OPTIONS_PER_TASK
            smallest, leanest = min(front, key=lambda each: each[1]), min(front, key=lambda each: each[2])
            kept = front[: MAX_OPTIONS_PER_TASK - 2]
            front = kept + [each for each in dict.fromkeys((smallest, leanest)) if each not in kept]
            front.sort()
        return tuple(options[each[4]] for each in front)


def replica_with(stages: Sequence[tuple[int, tuple[int, ...]]], num_prompts: int) -> Replica:
    """A replica of a layout with its share."""
    return Replica(
        stages=tuple(Stage(num_layers=layers, devices=devices) for layers, devices in stages), num_prompts=num_prompts
    )


def replicas_with(layout: Layout, shares: Sequence[int]) -> tuple[Replica, ...]:
    """All replicas of a layout with their shares."""
    return tuple(replica_with(stages, share) for stages, share in zip(layout.replicas, shares, strict=True))


def layout_of(plan: TaskPlan) -> Layout:
    """The layout behind a task plan."""
    return Layout(
        replicas=tuple(tuple((stage.num_layers, stage.devices) for stage in replica.stages) for replica in plan.replicas)
    )
