"""Options of a generation task: layouts, and the KV pools that fit beside what the group's other tasks hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hetrl.cost.generation import Generation, in_flight_tokens, replica_generation
from hetrl.cost.residency import task_memory
from hetrl.cost.stages import replica_class
from hetrl.plan.plan import Replica, Residency, TaskPlan
from hetrl.search.context import DeviceCounts
from hetrl.search.level2_parallelism import Layout, layouts
from hetrl.search.shares import balanced_shares
from hetrl.search.task_options import (
    MAX_OPTIONS_PER_TASK,
    FloatArray,
    TaskOption,
    TaskOptions,
    layout_of,
    replica_with,
    replicas_with,
)
from hetrl.spec.devices import DTYPE_BYTES
from hetrl.spec.workflow import Task
from hetrl.workload.memory import kv_bytes_per_token

ENGINE_CONCURRENCY = 256
"""Sequences an engine runs at once at most (vLLM's default ``max_num_seqs``)."""


class EngineOptions:
    """Engines of a generation task, memoised by devices and by the memory that is taken."""

    def __init__(self, options: TaskOptions) -> None:
        self.options = options
        self.context = options.context
        self._alone: dict[tuple[str, DeviceCounts], tuple[TaskOption, ...]] = {}
        # options live as long as their memo, so an id identifies one
        self._beside: dict[tuple[int, str, tuple[float, ...]], tuple[TaskOption, ...]] = {}
        self._generation: dict[tuple[str, tuple[object, ...], float], Generation] = {}

    def alone(self, task: Task, counts: DeviceCounts) -> tuple[TaskOption, ...]:
        """Engines with all memory to themselves, fastest first: lower bounds of their time with neighbours."""
        key = (task.name, counts)
        if key not in self._alone:
            nothing = np.zeros(len(self.context.nodes))
            found = [
                option
                for layout in layouts(self.context, task, counts)
                for option in self._option(task, layout, "resident", nothing)
            ]
            found.sort(key=lambda option: option.seconds)
            if len(found) > MAX_OPTIONS_PER_TASK:
                self.context.counts.cuts["FRONT_OVERFLOW"] += len(found) - MAX_OPTIONS_PER_TASK
            self._alone[key] = tuple(found[:MAX_OPTIONS_PER_TASK])
        return self._alone[key]

    def beside(self, task: Task, engine: TaskOption, weights_when_idle: str, taken: FloatArray) -> tuple[TaskOption, ...]:
        """The engine with its KV pool in the room that ``taken`` bytes per node leave; empty if there is too little."""
        key = (id(engine), weights_when_idle, tuple(taken.tolist()))
        if key not in self._beside:
            self._beside[key] = tuple(self._option(task, layout_of(engine.plan), weights_when_idle, taken))
        return self._beside[key]

    def _option(self, task: Task, layout: Layout, weights_when_idle: str, taken: FloatArray) -> Iterator[TaskOption]:
        context = self.context
        num_prompts = context.job.batch.num_prompts
        plan = TaskPlan(
            task=task.name,
            replicas=replicas_with(layout, [num_prompts] * len(layout.replicas)),
            micro_batch_size=ENGINE_CONCURRENCY,
            residency=Residency(weights_when_idle=weights_when_idle),
        )
        ranks = self.options.fitting_memory(task, plan)
        if ranks is None:
            return
        tokens = self._kv_tokens(task, plan, taken)
        if tokens is None:
            context.counts.cuts["KV_ROOM"] += 1
            return
        classes = [(replica_class(context.topology, replica), held) for replica, held in zip(plan.replicas, tokens, strict=True)]
        shares = balanced_shares(
            num_prompts,
            classes,
            lambda index, prompts: self._replica(task, plan, replica_with(layout.replicas[index], prompts), tokens[index]).seconds,
        )
        if shares is None:
            context.counts.cuts["KV_ROOM"] += 1
            return
        placed = replace(plan, replicas=replicas_with(layout, shares))
        seconds = max(
            self._replica(task, placed, replica, held).seconds for replica, held in zip(placed.replicas, tokens, strict=True)
        )
        yield self.options.option(task, placed, ranks, seconds)

    def _replica(self, task: Task, plan: TaskPlan, replica: Replica, kv_tokens: float) -> Generation:
        key = (task.name, replica_class(self.context.topology, replica), kv_tokens)
        if key not in self._generation:
            self._generation[key] = replica_generation(
                self.context.costs, self.context.topology, self.context.job.batch, task, plan, replica, kv_tokens
            )
        return self._generation[key]

    def _kv_tokens(self, task: Task, plan: TaskPlan, taken: FloatArray) -> tuple[float, ...] | None:
        """Tokens that fit in every replica's KV pool beside ``taken`` bytes per node; None if any holds too few."""
        job = self.context.job
        ranks = task_memory(job, task, plan)
        element = DTYPE_BYTES[job.precision.kv_cache_dtype]
        useful = ENGINE_CONCURRENCY * in_flight_tokens(job.batch, task.sequences_per_prompt)
        result = []
        for replica in plan.replicas:
            fits = max(useful, float(job.batch.max_sequence_tokens))
            first_layer = 0
            for stage in replica.stages:
                each = kv_bytes_per_token(
                    task.model,
                    first_layer=first_layer,
                    num_layers=stage.num_layers,
                    tensor_parallel=stage.tensor_parallel,
                    bytes_per_element=element,
                )
                first_layer += stage.num_layers
                node = self.context.topology.devices[stage.devices[0]].node
                room = self.options.limits[node] - taken[node] - ranks[stage.devices[0]].active_bytes
                fits = min(fits, room / each)
            held = math.floor(max(0.0, fits))
            if held < job.batch.max_sequence_tokens:
                return None
            result.append(float(held))
        return tuple(result)
