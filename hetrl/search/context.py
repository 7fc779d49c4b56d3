"""What all levels of the search share: the job, its unit costs, memo tables, and counts of the work done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hetrl.cost.unit import UnitCosts
from hetrl.spec.job import Job
from hetrl.spec.topology import Topology

DeviceCounts = tuple[int, ...]
"""Devices a group has on every node. Devices of one node are interchangeable until level 5."""


@dataclass(slots=True, kw_only=True)
class SearchCounts:
    """Work done by a search, by kind, and cuts by reason."""

    evaluations: int = 0
    cuts: Counter[str] = field(default_factory=Counter)


class SearchContext:
    """A job being planned."""

    def __init__(self, job: Job, costs: UnitCosts) -> None:
        self.job = job
        self.costs = costs
        self.topology: Topology = job.topology
        self.counts = SearchCounts()
        self.nodes = tuple(range(len(job.topology.nodes)))

    def canonical_devices(self, counts: DeviceCounts) -> tuple[int, ...]:
        """The first ``counts[n]`` devices of every node."""
        return tuple(
            device for node in self.nodes for device in self.topology.devices_of(node)[: counts[node]]
        )

    def counts_of(self, devices: Sequence[int]) -> DeviceCounts:
        """Devices per node."""
        counts = [0] * len(self.nodes)
        for device in devices:
            counts[self.topology.devices[device].node] += 1
        return tuple(counts)
