"""Nodes, devices and the links between them.

Devices are numbered 0..D-1 in node order. A link has a latency (s) and a bandwidth (byte/s, one direction).
Within a node every pair of devices has the node's own link; between two nodes the link is either given by a
matrix or follows from both NICs and the network level they share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hetrl.errors import Problem, SpecError
from hetrl.spec.devices import DeviceType

LEVELS = ("rack", "zone", "region", "wan")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTerms:
    """Seconds of one collective over a full buffer of v bytes: ``offset + per_sqrt_byte sqrt(v) + per_byte v``."""

    offset_seconds: float
    seconds_per_sqrt_byte: float
    seconds_per_byte: float

    def seconds(self, v: float) -> float:
        """Seconds of a full buffer of ``v`` bytes."""
        return self.offset_seconds + self.seconds_per_sqrt_byte * math.sqrt(v) + self.seconds_per_byte * v


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredCollectives:
    """What collectives take inside one node, (operation, number of ranks) -> terms; equal only to itself."""

    terms: Mapping[tuple[str, int], CollectiveTerms]
    provenance: str = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Latency in seconds and bandwidth in bytes per second, one direction.

    Parameters
    ----------
    kind
        Name of the interconnect or network level; ``measured`` if latency and bandwidth were.
    collectives
        Measured collectives over this link inside one node; None where latency and bandwidth are all that is known.
    """

    latency_seconds: float
    bytes_per_second: float
    kind: str = ""
    collectives: MeasuredCollectives | None = None

    def __post_init__(self) -> None:
        if self.latency_seconds < 0 or not self.bytes_per_second > 0:
            raise SpecError(
                Problem(path="link", message="latency must be >= 0 and bandwidth > 0", found=f"{self}", rule="LINK")
            )

    def measured(self, operation: str, num_ranks: int) -> CollectiveTerms | None:
        """Measured terms of ``all_reduce``, ``all_gather`` or ``reduce_scatter`` over so many ranks, if there are."""
        return None if self.collectives is None else self.collectives.terms.get((operation, num_ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine with equal devices.

    Parameters
    ----------
    id
        Unique name.
    device_type, num_devices
        What it carries. A machine with two kinds of device is described as two nodes with the same ``host``.
    intra_link
        Link between two of its devices, one direction.
    nic_bytes_per_second
        Bandwidth of all its network cards together, one direction, shared by its devices.
    network_latency_seconds
        Latency to another node in the same zone.
    host_ram_bytes, cpu_cores
        Host limits, shared by its devices.
    host_link_bytes_per_second
        Device <-> host memory bandwidth of one device, one direction.
    host_memory_bytes_per_second
        Bandwidth of the host memory, shared by the node's devices.
    rack, zone, region
        Network levels; equal names mean the same level.
    uplink_bytes_per_second
        Shared uplink of the node's rack; None if not a limit.
    usd_per_hour
        Price of the whole node; None if unknown (never 0).
    instance
        Cloud instance name, if any.
    nvlink_domain
        Nodes with the same non-empty name share one NVLink fabric (e.g. GB200 racks): tensor groups may span them.
    """

    id: str
    device_type: DeviceType
    num_devices: int
    intra_link: Link
    nic_bytes_per_second: float
    network_latency_seconds: float = 30e-6
    host_ram_bytes: int
    cpu_cores: int
    host_link_bytes_per_second: float
    host_memory_bytes_per_second: float
    rack: str = ""
    zone: str = ""
    region: str = ""
    uplink_bytes_per_second: float | None = None
    usd_per_hour: float | None = None
    instance: str = ""
    nvlink_domain: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of the fleet: its number, its node and its position there."""

    id: int
    node: int
    local_index: int
    type: DeviceType


def share_machine(a: Node, b: Node) -> bool:
    """Whether two nodes are parts of one host or of one NVLink fabric, so that tensor groups may span them."""
    return bool(a.host and a.host == b.host) or bool(a.nvlink_domain and a.nvlink_domain == b.nvlink_domain)


def network_level(a: Node, b: Node) -> str:
    """Return the smallest network level that two nodes share, one of `LEVELS`."""
    if a.region != b.region:
        return "wan"
    if a.zone != b.zone:
        return "region"
    return "rack" if a.rack and a.rack == b.rack else "zone"


@dataclass(frozen=True, slots=True)
class Topology:
    """All nodes of a fleet.

    Parameters
    ----------
    nodes
        In the user's order; device ids follow it.
    node_links
        (i, j) -> link from node i to node j where one was given; others follow from NICs and levels.
    levels
        Link of a network level (one of `LEVELS`): two nodes use that of the smallest level they share, limited by
        their NICs. Nodes that share no level name are in one zone unless their regions differ (``wan``).
    """

    nodes: tuple[Node, ...]
    node_links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    levels: Mapping[str, Link] = field(default_factory=dict)
    devices: tuple[Device, ...] = field(init=False)
    first_device: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        problems = []
        seen: set[str] = set()
        devices: list[Device] = []
        first: list[int] = []
        for index, node in enumerate(self.nodes):
            path = f"cluster_topology.nodes[{index}]"
            if node.id in seen:
                problems.append(Problem(path=f"{path}.id", message="node id used twice", found=node.id))
            seen.add(node.id)
            if node.num_devices < 1:
                problems.append(
                    Problem(
                        path=f"{path}.gpus", message="a node needs at least one device", found=str(node.num_devices)
                    )
                )
            start = len(devices)
            first.append(start)
            devices.extend(
                Device(id=start + local, node=index, local_index=local, type=node.device_type)
                for local in range(max(node.num_devices, 0))
            )
        if not self.nodes:
            problems.append(Problem(path="cluster_topology.nodes", message="no nodes", valid="at least one node"))
        if problems:
            raise SpecError(problems)
        object.__setattr__(self, "devices", tuple(devices))
        object.__setattr__(self, "first_device", tuple(first))

    @property
    def num_devices(self) -> int:
        """Number of devices in the fleet."""
        return len(self.devices)

    @property
    def device_types(self) -> tuple[DeviceType, ...]:
        """Distinct device types in order of first appearance."""
        return tuple({node.device_type.name: node.device_type for node in self.nodes}.values())

    def devices_of(self, node: int) -> range:
        """Device ids of a node."""
        start = self.first_device[node]
        return range(start, start + self.nodes[node].num_devices)

    def node_link(self, source: int, target: int) -> Link:
        """Link between two nodes (or, for equal arguments, inside one), one direction.

        Nodes of one NVLink domain reach each other as fast as inside the slower of them. Between other nodes without a
        given link the slower NIC decides, and the larger latency; a network level that was described replaces the
        latency and limits the bandwidth.
        """
        if source == target:
            return self.nodes[source].intra_link
        given = self.node_links.get((source, target))
        if given is not None:
            return given
        a, b = self.nodes[source], self.nodes[target]
        if a.nvlink_domain and a.nvlink_domain == b.nvlink_domain:
            return min(a.intra_link, b.intra_link, key=lambda link: link.bytes_per_second)
        slower_nic = min(a.nic_bytes_per_second, b.nic_bytes_per_second)
        name = network_level(a, b)
        level = self.levels.get(name)
        if level is not None:
            return Link(
                latency_seconds=level.latency_seconds,
                bytes_per_second=min(level.bytes_per_second, slower_nic),
                kind=name,
            )
        return Link(
            latency_seconds=max(a.network_latency_seconds, b.network_latency_seconds),
            bytes_per_second=slower_nic,
            kind="network",
        )

    def links_between(self, sources: Iterable[int], targets: Iterable[int]) -> list[Link]:
        """All links from some nodes to other ones; those that follow from the same NICs and levels mostly once."""
        from_looks, to_looks = self._by_network(sources), self._by_network(targets)
        pairs = (
            next(((source, target) for source in some for target in others if source != target), None)
            for some in from_looks
            for others in to_looks
        )
        return [self.node_link(*pair) for pair in pairs if pair is not None]

    def _by_network(self, nodes: Iterable[int]) -> list[list[int]]:
        """Nodes by all that their links to others depend on, two of each kind: of given links, the node itself."""
        given = {node for pair in self.node_links for node in pair}
        kinds: dict[object, list[int]] = {}
        for index in nodes:
            node = self.nodes[index]
            inside = (node.intra_link.latency_seconds, node.intra_link.bytes_per_second, node.intra_link.kind)
            key = (
                index if index in given else -1,
                inside if node.nvlink_domain else (),
                node.nvlink_domain,
                node.nic_bytes_per_second,
                node.network_latency_seconds,
                node.rack,
                node.zone,
                node.region,
            )
            alike = kinds.setdefault(key, [])
            if len(alike) < 2:  # one may be the node at the other end
                alike.append(index)
        return list(kinds.values())

    def link(self, source: int, target: int) -> Link:
        """Link between two devices, one direction."""
        return self.node_link(self.devices[source].node, self.devices[target].node)

    def same_tensor_domain(self, devices: Sequence[int]) -> bool:
        """Whether all devices sit in one node, host or NVLink domain, so that tensor parallelism is allowed."""
        first, *others = {self.devices[device].node for device in devices} or {0}
        return all(share_machine(self.nodes[first], self.nodes[other]) for other in others)
