"""Level 4: how many devices of which node each group gets. Starts, which kernels anneal, and moves of whole nodes."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterator, Sequence
from itertools import combinations, product

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


class Starts:
    """Starting assignments of groupings: random node-aligned ones, and types shared out by load.

    Parameters
    ----------
    context
        The job.
    rng
        Source of all randomness.
    """

    def __init__(self, context: SearchContext, rng: random.Random) -> None:
        self.rng = rng
        self.sizes = [node.num_devices for node in context.topology.nodes]
        self.kinds = [int(kind) for kind in context.tables.node_type]
        self.loads = task_loads(context)
        self.members: dict[int, list[int]] = {}
        for node, kind in enumerate(self.kinds):
            self.members.setdefault(kind, []).append(node)

    def aligned(self, num_groups: int) -> Assignment:
        """Whole nodes at random, or parts where there are fewer nodes than groups need."""
        parts = 1
        while parts < 8 and sum(min(parts, size) for size in self.sizes) < 2 * num_groups:
            parts *= 2
        blocks: list[tuple[int, int]] = []
        for node, size in enumerate(self.sizes):
            pieces = min(parts, size)
            base, extra = divmod(size, pieces)
            blocks.extend((node, base + (1 if piece < extra else 0)) for piece in range(pieces))
        self.rng.shuffle(blocks)
        counts = [[0] * len(self.sizes) for _ in range(num_groups)]
        for number, (node, size) in enumerate(blocks):
            group = number if number < num_groups else self.rng.randrange(num_groups)
            counts[group][node] += size
        return as_assignment(counts)

    def whole_types(self, num_groups: int, most: int) -> list[Assignment]:
        """All ways to give whole device types to groups so that each has one; none if there are more than ``most``."""
        kinds = list(self.members)
        if num_groups > len(kinds) or num_groups ** len(kinds) > most:
            return []
        found = []
        for owners in product(range(num_groups), repeat=len(kinds)):
            if len(set(owners)) == num_groups:
                owner = dict(zip(kinds, owners, strict=True))
                found.append(
                    [
                        [size if owner[kind] == group else 0 for size, kind in zip(self.sizes, self.kinds, strict=True)]
                        for group in range(num_groups)
                    ]
                )
        return [as_assignment(each) for each in found]

    def proportional(self, grouping: Grouping, spread: float) -> Assignment:
        """Every device type shared out in proportion to the groups' loads, distorted at random, node after node.

        Parameters
        ----------
        spread
            Standard deviation of the distortion's logarithm.
        """
        num_groups = len(grouping)
        counts = [[0] * len(self.sizes) for _ in range(num_groups)]
        of_groups = [sum(self.loads[task] for task in tasks) for tasks in grouping]
        order = list(range(num_groups))
        for members in self.members.values():
            total = sum(self.sizes[node] for node in members)
            unit = 1 if total <= 16 else min(self.sizes[node] for node in members)
            weights = [load * math.exp(self.rng.gauss(0.0, spread)) for load in of_groups]
            self.rng.shuffle(order)
            filled, reached = 0.0, 0
            left = []
            for group in order:
                filled += weights[group]
                end = round(filled / sum(weights) * total / unit) * unit
                left.append(end - reached)
                reached = end
            left[-1] += total - reached
            which = 0
            for node in members:
                free = self.sizes[node]
                while free and which < num_groups:
                    take = min(free, left[which])
                    counts[order[which]][node] += take
                    left[which] -= take
                    free -= take
                    if left[which] == 0:
                        which += 1
        for row in counts:  # nobody may be left without a device
            if not any(row):
                richest = max(counts, key=sum)
                node = richest.index(max(richest))
                richest[node] -= 1
                row[node] += 1
        return as_assignment(counts)


def as_assignment(counts: Sequence[Sequence[int]]) -> Assignment:
    """Device counts per group and node as the kernels' keys."""
    return tuple(array("i", row).tobytes() for row in counts)


def node_moves(context: SearchContext, assignment: Assignment) -> Iterator[Assignment]:
    """Yield assignments in which a node's or a whole type's devices go to another group, or two of them swap.

    Nodes that are alike, links and owners included, are moved once.
    """
    counts, tables = _counts(assignment), context.tables
    units = _units(context, counts)
    for unit in units:
        for group in range(len(assignment)):
            changed = counts.copy()
            changed[:, unit] = 0
            changed[group, unit] = tables.node_devices[unit]
            yield from _if_new(changed, counts)
    for first, second in combinations(units, 2):
        owners = [counts[:, unit].sum(axis=1).argmax() for unit in (first, second)]
        changed = counts.copy()
        for unit, owner in zip((first, second), reversed(owners), strict=True):
            changed[:, unit] = 0
            changed[owner, unit] = tables.node_devices[unit]
        yield from _if_new(changed, counts)


def idle_moves(context: SearchContext, assignment: Assignment) -> Iterator[Assignment]:
    """Yield assignments in which a group gives up its devices of a node or type; they become a last, idle group."""
    counts = _counts(assignment)
    for unit in _units(context, counts):
        for group in range(len(counts)):
            if not counts[group, unit].any():
                continue
            changed = np.vstack([counts, np.zeros_like(counts[:1])])
            changed[-1, unit] = changed[group, unit]
            changed[group, unit] = 0
            if changed[group].any():
                yield as_assignment(changed.tolist())


def _counts(assignment: Assignment) -> NDArray[np.int32]:
    return np.stack([np.frombuffer(key, dtype=np.int32) for key in assignment])


def _units(context: SearchContext, counts: NDArray[np.int32]) -> list[list[int]]:
    """Types, and single nodes; of nodes that are alike, links and owners included, one."""
    tables = context.tables
    links = np.sort(tables.link_kind, axis=1)
    looks: dict[bytes, list[int]] = {}
    for node in context.nodes:
        look = tables.node_kind[node].tobytes() + links[node].tobytes() + counts[:, node].tobytes()
        looks.setdefault(look, [node])
    types = [np.flatnonzero(tables.node_type == kind).tolist() for kind in range(len(tables.type_flops))]
    return [*types, *looks.values()]


def _if_new(changed: NDArray[np.int32], counts: NDArray[np.int32]) -> Iterator[Assignment]:
    if (changed.sum(axis=1) > 0).all() and (changed != counts).any():
        yield as_assignment(changed.tolist())
