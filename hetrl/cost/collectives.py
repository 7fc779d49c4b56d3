"""Seconds of collectives over links: what was measured on the link, else the latency-bandwidth model.

``v`` is the full buffer in bytes, as in nccl-tests; latency is paid per ring step; ``W`` is the slowest link of the
ring in one direction. Collectives are measured inside one node only (see `hetrl.cost.node_collectives`).
"""

from __future__ import annotations

from collections.abc import Sequence

from hetrl.spec.topology import CollectiveTerms, Link, Topology

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")


def collective_terms(operation: str, n: int, link: Link) -> CollectiveTerms:
    """Terms of one of the `OPERATIONS` over ``n`` ranks; a ring where nothing was measured.

    A ring takes ``(n-1) (L + v / (n W))``, and an all-reduce twice that.
    """
    measured = link.measured(operation, n)
    if measured is not None:
        return measured
    steps = (2 if operation == "all_reduce" else 1) * max(0, n - 1)
    return CollectiveTerms(
        offset_seconds=steps * link.latency_seconds,
        seconds_per_sqrt_byte=0.0,
        seconds_per_byte=steps / (n * link.bytes_per_second),
    )


def all_reduce_seconds(v: float, n: int, link: Link) -> float:
    """Ring all-reduce: ``2 (n-1) (L + v / (n W))``, or what was measured."""
    return 0.0 if n <= 1 else collective_terms("all_reduce", n, link).seconds(v)


def all_gather_seconds(v: float, n: int, link: Link) -> float:
    """Ring all-gather: ``(n-1) (L + v / (n W))``, or what was measured."""
    return 0.0 if n <= 1 else collective_terms("all_gather", n, link).seconds(v)


def reduce_scatter_seconds(v: float, n: int, link: Link) -> float:
    """Ring reduce-scatter: ``(n-1) (L + v / (n W))``, or what was measured."""
    return 0.0 if n <= 1 else collective_terms("reduce_scatter", n, link).seconds(v)


def send_seconds(v: float, link: Link) -> float:
    """One message: ``L + v / W``."""
    return link.latency_seconds + v / link.bytes_per_second


def hierarchical_all_reduce_seconds(
    v: float, *, devices_per_node: int, num_nodes: int, inner: Link, outer: Link
) -> float:
    """All-reduce inside nodes, between nodes, and back: ``2(g-1)(L1 + v/(g W1)) + 2(N-1)(L2 + v/(N W2))``.

    ``outer`` is the bandwidth a node has for this buffer, so its network card, shared with concurrent flows.
    """
    return all_reduce_seconds(v, devices_per_node, inner) + all_reduce_seconds(v, num_nodes, outer)


def slowest_link(topology: Topology, devices: Sequence[int], *, flows_per_node: int = 1) -> Link:
    """Slowest hop of the ring over ``devices``; hops between nodes share the network with concurrent flows.

    Returns a link with the largest latency and the smallest bandwidth of all hops; inside one node its own link.
    """
    nodes = {topology.devices[device].node for device in devices}
    if len(nodes) == 1:
        return topology.nodes[nodes.pop()].intra_link
    latency = 0.0
    bandwidth = float("inf")
    kind = ""
    num = len(devices)
    for position in range(num):
        a = topology.devices[devices[position]].node
        b = topology.devices[devices[(position + 1) % num]].node
        link = topology.node_link(a, b)
        hop = link.bytes_per_second if a == b else link.bytes_per_second / flows_per_node
        latency = max(latency, link.latency_seconds)
        if hop < bandwidth:
            bandwidth, kind = hop, link.kind
    return Link(latency_seconds=latency, bytes_per_second=bandwidth, kind=kind)


def best_all_reduce_seconds(v: float, topology: Topology, devices: Sequence[int], *, flows_per_node: int = 1) -> float:
    """Flat ring or hierarchical all-reduce over ``devices``, whichever is faster.

    The hierarchical form needs the same number of devices in each of at least two nodes.
    """
    num = len(devices)
    if num <= 1:
        return 0.0
    flat = all_reduce_seconds(v, num, slowest_link(topology, devices, flows_per_node=flows_per_node))
    per_node: dict[int, int] = {}
    for device in devices:
        node = topology.devices[device].node
        per_node[node] = per_node.get(node, 0) + 1
    counts = set(per_node.values())
    if len(per_node) < 2 or len(counts) != 1 or counts == {1}:
        return flat
    nodes = list(per_node)
    inner = min((topology.nodes[node].intra_link for node in nodes), key=lambda link: link.bytes_per_second)
    leaders = [next(device for device in devices if topology.devices[device].node == node) for node in nodes]
    outer = slowest_link(topology, leaders, flows_per_node=flows_per_node)
    two_level = hierarchical_all_reduce_seconds(
        v, devices_per_node=counts.pop(), num_nodes=len(nodes), inner=inner, outer=outer
    )
    return min(flat, two_level)
