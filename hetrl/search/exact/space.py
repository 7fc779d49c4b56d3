"""What the exact solver enumerates: classes of interchangeable nodes, device vectors, and packings into nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.tables import CostTables
from hetrl.search.bounds import phases
from hetrl.search.exact.result import DeclaredSpace, NodeClass
from hetrl.search.level1_grouping import groupings
from hetrl.spec.job import Job

MAX_VECTORS = 300_000
"""Beyond that, nodes that differ in their links only are put into one class."""

MAX_FINE_VECTORS = 20_000
"""Beyond that, groups get devices in twos, fours or eights of the largest classes."""

Vector = tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """Classes, vectors and partitions of a job."""

    job: Job
    tables: CostTables
    classes: tuple[NodeClass, ...]
    units: tuple[int, ...]
    """Per class: a group's devices are a multiple of this."""
    vectors: NDArray[np.int32]
    """[V, classes], without the empty one."""
    partitions: tuple[tuple[tuple[int, ...], ...], ...]
    phases: tuple[tuple[int, ...], ...]
    best_links: bool

    @property
    def capacity(self) -> NDArray[np.int32]:
        """Devices per class."""
        return np.array([each.num_devices for each in self.classes], dtype=np.int32)

    def counts(self, vector: Sequence[int]) -> NDArray[np.int32]:
        """Devices per node of the canonical placement: whole nodes first, then one remainder."""
        counts = np.zeros(len(self.job.topology.nodes), dtype=np.int32)
        for kind, devices in zip(self.classes, vector, strict=True):
            whole, rest = divmod(int(devices), kind.size)
            counts[list(kind.nodes[:whole])] = kind.size
            if rest:
                counts[kind.nodes[whole]] = rest
        return counts

    def key(self, vector: Sequence[int]) -> bytes:
        """Return the same as the kernels' key."""
        return self.counts(vector).tobytes()

    def vector_of(self, counts: Sequence[int]) -> Vector:
        """Devices per class of any counts per node."""
        return tuple(int(sum(counts[node] for node in kind.nodes)) for kind in self.classes)

    def admits(self, vector: Sequence[int]) -> bool:
        """Whether a group may have these devices."""
        return len(vector) == len(self.classes) and all(
            0 <= number <= kind.num_devices and number % unit == 0
            for number, kind, unit in zip(vector, self.classes, self.units, strict=True)
        )

    def describe(self) -> DeclaredSpace:
        """Put the space into words and numbers."""
        names = [task.name for task in self.job.workflow.tasks]
        classes = "; ".join(
            f"{len(each.nodes)} x {each.size} {each.device_type} ({', '.join(each.node_ids)})" for each in self.classes
        )
        text = (
            f"All {len(self.partitions)} partitions of {len(names)} tasks into groups with disjoint devices. A group "
            f"has a number of devices of every node class [{classes}], {len(self.vectors)} vectors in all, on as few "
            "nodes as possible: whole nodes and one remainder per class; remainders of several groups share nodes. "
            "Devices may stay unused. Of every task all layouts, micro-batches, recomputation, sharding and residency "
            "that the hybrid search knows (docs/search.md), without its cuts for speed, pipelines over mixed devices "
            "also with the fastest stages filled first; shares of the replicas by the search's rounds or by exact "
            "threshold fill, whichever is faster; engines take the room that is left beside the others."
        )
        if any(unit > 1 for unit in self.units):
            units = ", ".join(
                f"{unit} {kind.device_type}" for unit, kind in zip(self.units, self.classes, strict=True) if unit > 1
            )
            text += f" The fleet is large: a group has its devices in multiples of {units}."
        if self.best_links:
            text += (
                " Nodes of one class differ in their links: the bound takes the best link between two classes, and "
                "plans are the best found of canonical placements, groups on consecutive nodes; the optimum lies "
                "between the two."
            )
        return DeclaredSpace(
            classes=self.classes,
            num_vectors=len(self.vectors),
            num_partitions=len(self.partitions),
            phases=tuple(tuple(names[task] for task in phase) for phase in self.phases),
            best_links=self.best_links,
            text=text,
        )


def declared_space(job: Job, tables: CostTables) -> Space:
    """Classes by equal nodes with equal links; by equal nodes alone where those are too many."""
    for best_links in (False, True):
        classes = node_classes(job, tables, links=not best_links)
        sizes = [each.num_devices + 1 for each in classes]
        if best_links or np.prod(np.array(sizes, dtype=float)) <= MAX_VECTORS:
            break
    units = units_of(classes)
    counts = [range(0, size, unit) for size, unit in zip(sizes, units, strict=True)]
    vectors = np.array(list(product(*counts))[1:], dtype=np.int32)
    partitions = tuple(
        grouping
        for grouping in groupings([task.kind for task in job.workflow.tasks])
        if len(grouping) <= job.topology.num_devices
    )
    together = [tuple(range(len(job.workflow.tasks)))]
    return Space(
        job=job,
        tables=tables,
        classes=classes,
        units=units,
        vectors=vectors,
        partitions=partitions,
        phases=tuple(together if job.staleness > 0 else phases(job)),
        best_links=best_links and classes != node_classes(job, tables, links=True),
    )


def units_of(classes: Sequence[NodeClass]) -> tuple[int, ...]:
    """Double the unit of the class with most steps, as long as there are too many vectors and a node divides by it."""
    units = [1] * len(classes)
    while True:
        steps = [kind.num_devices // unit for kind, unit in zip(classes, units, strict=True)]
        finer = [number for number, kind in enumerate(classes) if kind.size % (2 * units[number]) == 0]
        if np.prod(np.array(steps, dtype=float) + 1) <= MAX_FINE_VECTORS or not finer:
            return tuple(units)
        units[max(finer, key=lambda number: steps[number])] *= 2


def node_classes(job: Job, tables: CostTables, *, links: bool) -> tuple[NodeClass, ...]:
    """Return runs of consecutive nodes that may change places; with ``links`` only where their links are equal, too."""
    nodes = job.topology.nodes
    runs: list[list[int]] = []
    for node in range(len(nodes)):
        # alike with one of a run is alike with all of it: exchanges of two nodes make up those of others
        if runs and _alike(tables, runs[-1][0], node, links):
            runs[-1].append(node)
        else:
            runs.append([node])
    return tuple(
        NodeClass(
            nodes=tuple(run),
            node_ids=tuple(nodes[node].id for node in run),
            device_type=nodes[run[0]].device_type.name,
            size=nodes[run[0]].num_devices,
        )
        for run in runs
    )


def _alike(tables: CostTables, a: int, b: int, links: bool) -> bool:
    prices = tables.node_usd[[a, b]]
    if tables.node_kind[a] != tables.node_kind[b] or (prices[0] != prices[1] and not np.isnan(prices).all()):
        return False
    if not links:
        return True
    kind = tables.link_kind
    same = (kind[a] == kind[b]) & (kind[:, a] == kind[:, b])
    same[[a, b]] = kind[a, b] == kind[b, a]
    return bool(same.all())


def packings(space: Space, vectors: Sequence[Sequence[int]]) -> Iterator[list[NDArray[np.int32]]]:
    """All ways to place groups with these vectors, up to the choice of equal nodes.

    Yields
    ------
    Per group ``[N]``: where the canonical placement's node goes (-1 where the group has none).
    """
    per_class = [list(_class_packings(kind, [int(v[c]) for v in vectors])) for c, kind in enumerate(space.classes)]
    num_nodes = len(space.job.topology.nodes)
    for ways in product(*per_class):
        maps = [np.full(num_nodes, -1, dtype=np.int32) for _ in vectors]
        for kind, way in zip(space.classes, ways, strict=True):
            for group, nodes in enumerate(way):
                maps[group][list(kind.nodes[: len(nodes)])] = nodes
        yield maps


def _class_packings(kind: NodeClass, devices: list[int]) -> Iterator[list[tuple[int, ...]]]:
    """Nodes of every group inside one class, whole nodes first; remainders are put together in all ways that fit."""
    whole = [each // kind.size for each in devices]
    rest = [(group, each % kind.size) for group, each in enumerate(devices) if each % kind.size]
    free = len(kind.nodes) - sum(whole)
    if free < 0:
        return
    for bins in _bins(rest, kind.size, free, []):
        position = 0
        nodes: list[list[int]] = []
        for number in whole:
            nodes.append(list(kind.nodes[position : position + number]))
            position += number
        for members in bins:
            for group, _ in members:
                nodes[group].append(kind.nodes[position])
            position += 1
        yield [tuple(each) for each in nodes]


def _bins(
    rest: list[tuple[int, int]], size: int, most: int, bins: list[list[tuple[int, int]]]
) -> Iterator[list[list[tuple[int, int]]]]:
    if not rest:
        yield [list(each) for each in bins]
        return
    for each in bins:
        if sum(count for _, count in each) + rest[0][1] <= size:
            each.append(rest[0])
            yield from _bins(rest[1:], size, most, bins)
            each.pop()
    if len(bins) < most:
        yield from _bins(rest[1:], size, most, [*bins, [rest[0]]])
