"""Level 5, inner steps on the placed plan: layers of stages on different devices, and exact shares of replicas.

Levels 2 and 3 split layers and shares for devices as they saw them. Where level 5 has moved blocks, or where the
stages of a pipeline differ, another split may be faster: what a 1F1B pipeline takes is not decided by its slowest stage
alone, so layers move one by one as long as the recurrence gets shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

from hetrl.cost.pipeline import threshold_fill
from hetrl.cost.tables import MICRO_BATCHES, TENSOR_DEGREES
from hetrl.plan.plan import Plan, Replica, TaskPlan
from hetrl.search.constraints import NodeRules
from hetrl.search.context import SearchContext
from hetrl_kernels.layer_times import replica_seconds

MOST_LOOKS = 16
"""Training tasks whose replicas look more different keep their layers."""

Seconds = Callable[[tuple[int, ...], tuple[int, ...], int], float]
"""Seconds of a replica: nodes and layers of its stages, prompts."""


def refined(rules: NodeRules, plan: Plan, *, split_layers: bool) -> Plan:
    """Return the plan with other layers and shares where its training and scoring tasks get faster by them.

    Parameters
    ----------
    rules
        With the layouts that stay.
    plan
        A placed plan; memory is not looked at.
    split_layers
        Split layers anew as well; only shares otherwise.
    """
    kept = {each.task for each in rules.kept.values()}
    return replace(
        plan,
        tasks=tuple(
            task if task.task in kept else _refined_task(rules.context, task, split_layers) for task in plan.tasks
        ),
    )


def _refined_task(context: SearchContext, plan: TaskPlan, split_layers: bool) -> TaskPlan:
    job = context.job
    kind = job.workflow.task(plan.task).kind
    degrees = {stage.tensor_parallel for replica in plan.replicas for stage in replica.stages}
    if kind == "generate" or plan.micro_batch_size not in MICRO_BATCHES or len(degrees) != 1:
        return plan
    seconds = _seconds_of(context, plan)
    nodes = [
        tuple(job.topology.devices[stage.devices[0]].node for stage in replica.stages) for replica in plan.replicas
    ]
    layers = [tuple(stage.num_layers for stage in replica.stages) for replica in plan.replicas]
    if split_layers:
        layers = _split(context, kind, nodes, layers, [each.num_prompts for each in plan.replicas], seconds)
    prompts = [each.num_prompts for each in plan.replicas]
    looks = [_look(context, each) for each in nodes]
    if len(set(zip(looks, layers, strict=True))) > 1:
        prompts = _shares(nodes, looks, layers, prompts, seconds)
    return replace(
        plan,
        replicas=tuple(
            Replica(
                stages=tuple(
                    replace(stage, num_layers=number) for stage, number in zip(each.stages, split, strict=True)
                ),
                num_prompts=share,
            )
            for each, split, share in zip(plan.replicas, layers, prompts, strict=True)
        ),
    )


def _seconds_of(context: SearchContext, plan: TaskPlan) -> Seconds:
    degree = plan.replicas[0].stages[0].tensor_parallel
    task = context.job.workflow.index(plan.task)
    shape = MICRO_BATCHES.index(plan.micro_batch_size)

    @cache
    def seconds(nodes: tuple[int, ...], layers: tuple[int, ...], prompts: int) -> float:
        return replica_seconds(
            context.kernel_tables, task, TENSOR_DEGREES.index(degree), degree, shape, plan.micro_batch_size,
            plan.recompute, nodes, layers, prompts,
        )  # fmt: skip

    return seconds


def _look(context: SearchContext, nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Return what seconds depend on besides layers and prompts: kinds of nodes, and of the links between."""
    kinds = [int(context.tables.node_kind[node]) for node in nodes]
    links = [int(context.tables.link_kind[a, b]) for a, b in pairwise(nodes)]
    return (*kinds, *links)


def _slowest(seconds: Seconds, replicas: Sequence[tuple[tuple[int, ...], int]], layers: tuple[int, ...]) -> float:
    return max(seconds(nodes, layers, prompts) for nodes, prompts in replicas)


def _split(
    context: SearchContext,
    kind: str,
    nodes: list[tuple[int, ...]],
    layers: list[tuple[int, ...]],
    prompts: list[int],
    seconds: Seconds,
) -> list[tuple[int, ...]]:
    """Other layers for replicas on several kinds of nodes; replicas of a training task keep one split."""
    looks = [_look(context, each) for each in nodes]
    keys: list[object] = ["train"] * len(nodes) if kind == "train" else list(zip(looks, layers, strict=True))
    members: dict[object, dict[object, tuple[tuple[int, ...], int]]] = {}
    start: dict[object, tuple[int, ...]] = {}
    for key, look, on, split, share in zip(keys, looks, nodes, layers, prompts, strict=True):
        start[key] = split
        members.setdefault(key, {}).setdefault((look, share if kind == "train" else 0), (on, share))
    found = {}
    for key, alike in members.items():
        replicas = list(alike.values())
        mixed = any(len({int(context.tables.node_kind[node]) for node in on}) > 1 for on, _ in replicas)
        found[key] = start[key]
        if mixed and len(replicas) <= MOST_LOOKS:
            found[key] = fastest_layers(start[key], partial(_slowest, seconds, replicas))
    return [found[key] for key in keys]


def fastest_layers(layers: Sequence[int], seconds: Callable[[tuple[int, ...]], float]) -> tuple[int, ...]:
    """Move layers between stages one by one, each time where it helps most, until none helps."""
    best = tuple(layers)
    reached = seconds(best)
    while True:
        neighbours = [
            tuple(number + (stage == target) - (stage == source) for stage, number in enumerate(best))
            for source in range(len(best))
            for target in range(len(best))
            if source != target and best[source] > 1
        ]
        fastest = min(((seconds(each), each) for each in neighbours), default=(reached, best))
        if not fastest[0] < reached:
            return best
        reached, best = fastest


def _shares(
    nodes: list[tuple[int, ...]],
    looks: list[tuple[int, ...]],
    layers: list[tuple[int, ...]],
    prompts: list[int],
    seconds: Seconds,
) -> list[int]:
    """Shares that minimise the slowest replica; the old ones where these are no better."""
    alike: dict[object, tuple[int, ...]] = {}
    on = [alike.setdefault((look, split), each) for each, look, split in zip(nodes, looks, layers, strict=True)]
    functions: list[Callable[[int], float]] = [
        partial(seconds, each, split) for each, split in zip(on, layers, strict=True)
    ]
    found = list(threshold_fill(functions, sum(prompts)))
    before = max(function(count) for function, count in zip(functions, prompts, strict=True))
    if not found or max(function(count) for function, count in zip(functions, found, strict=True)) >= before:
        return prompts
    return found
