"""Level 4: how many devices of which node each group gets. Starting points; the kernels anneal from there."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from hetrl.search.context import Assignment, Grouping, SearchContext
from hetrl.workload.flops import forward_flops


def task_loads(context: SearchContext) -> list[float]:
    """Rough work of every task, to size groups: FLOPs, those of decoding counted thrice since it is bound by memory."""
    batch = context.job.batch
    loads = []
    for task in context.job.workflow.tasks:
        sequences = batch.num_prompts * task.sequences_per_prompt
        flops = forward_flops(task.model, num_sequences=sequences, new_tokens=batch.mean_sequence_tokens)
        loads.append(flops * {"train": 3.0 * batch.num_epochs, "score": 1.0, "generate": 3.0}[task.kind])
    return loads


def aligned_assignment(context: SearchContext, num_groups: int, rng: random.Random) -> Assignment:
    """A random node-aligned assignment: whole nodes, or parts where there are fewer nodes than groups need."""
    blocks: list[tuple[int, int]] = []
    sizes = [node.num_devices for node in context.topology.nodes]
    parts = 1
    while parts < 8 and sum(min(parts, size) for size in sizes) < 2 * num_groups:
        parts *= 2
    for node, size in enumerate(sizes):
        pieces = min(parts, size)
        base, extra = divmod(size, pieces)
        blocks.extend((node, base + (1 if piece < extra else 0)) for piece in range(pieces))
    rng.shuffle(blocks)
    counts = np.zeros((num_groups, len(sizes)), dtype=np.int32)
    for number, (node, size) in enumerate(blocks):
        group = number if number < num_groups else rng.randrange(num_groups)
        counts[group, node] += size
    return tuple(context.counts(row) for row in counts)


def proportional_assignment(
    context: SearchContext, grouping: Grouping, loads: list[float], rng: random.Random, *, spread: float
) -> Assignment:
    """Every device type shared out in proportion to the groups' loads, distorted at random, node after node.

    Parameters
    ----------
    spread
        Standard deviation of the distortion's logarithm.
    """
    nodes = context.topology.nodes
    counts: NDArray[np.int32] = np.zeros((len(grouping), len(nodes)), dtype=np.int32)
    of_groups = np.array([sum(loads[task] for task in tasks) for tasks in grouping])
    for kind in range(len(context.topology.device_types)):
        members = [node for node in context.nodes if context.tables.node_type[node] == kind]
        total = sum(nodes[node].num_devices for node in members)
        weights = of_groups * np.exp([rng.gauss(0.0, spread) for _ in grouping])
        unit = 1 if total <= 16 else min(nodes[node].num_devices for node in members)
        ends = np.round(np.cumsum(weights) / weights.sum() * total / unit).astype(int) * unit
        ends[-1] = total
        order = list(range(len(grouping)))
        rng.shuffle(order)
        which = 0
        sizes = np.diff(ends, prepend=0)
        left = [int(sizes[group]) for group in order]
        for node in members:
            free = nodes[node].num_devices
            while free and which < len(order):
                take = min(free, left[which])
                counts[order[which], node] += take
                left[which] -= take
                free -= take
                if left[which] == 0:
                    which += 1
    for group in np.flatnonzero(counts.sum(axis=1) == 0):  # nobody may be left without a device
        richest = int(counts.sum(axis=1).argmax())
        node = int(counts[richest].argmax())
        counts[richest, node] -= 1
        counts[group, node] += 1
    return tuple(context.counts(row) for row in counts)
