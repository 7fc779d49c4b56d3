"""Collectives against values worked out by hand and an independent step-by-step ring."""

import pytest

from hetrl.cost.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    best_all_reduce_seconds,
    hierarchical_all_reduce_seconds,
    send_seconds,
    slowest_link,
)
from hetrl.spec.presets import benchmark_instance
from hetrl.spec.topology import Link

LINK = Link(latency_seconds=1e-5, bytes_per_second=1e9)


def ring_all_reduce(v: float, n: int, latency: float, bandwidth: float) -> float:
    """2 (n-1) steps, in each of which every rank sends one chunk of v/n bytes to its neighbour."""
    clock = 0.0
    for _ in range(2 * (n - 1)):
        clock += latency + (v / n) / bandwidth
    return clock


@pytest.mark.parametrize("n", [2, 3, 8])
def test_all_reduce_is_a_ring(n: int) -> None:
    assert all_reduce_seconds(1e6, n, LINK) == pytest.approx(ring_all_reduce(1e6, n, 1e-5, 1e9), rel=1e-12)


def test_values_by_hand() -> None:
    # 8 ranks, 800 MB at 1 GB/s: 14 steps of 10 us + 100 MB / 1 GB/s
    assert all_reduce_seconds(8e8, 8, LINK) == pytest.approx(14 * (1e-5 + 0.1))
    assert all_gather_seconds(8e8, 8, LINK) == pytest.approx(7 * (1e-5 + 0.1))
    assert send_seconds(1e6, LINK) == pytest.approx(1e-5 + 1e-3)
    assert all_reduce_seconds(1e9, 1, LINK) == 0.0


def test_hierarchical_by_hand() -> None:
    inner = Link(latency_seconds=0.0, bytes_per_second=100e9)
    outer = Link(latency_seconds=0.0, bytes_per_second=10e9)
    # 4 per node, 2 nodes, 8 GB: inside 2*3*8/(4*100) = 0.12 s; between 2*1*8/(2*10) = 0.8 s
    seconds = hierarchical_all_reduce_seconds(8e9, devices_per_node=4, num_nodes=2, inner=inner, outer=outer)
    assert seconds == pytest.approx(0.92)


def test_slowest_hop_decides_and_flows_share_the_card() -> None:
    topology = benchmark_instance("guide20").topology
    inside = slowest_link(topology, range(8))
    assert inside.bytes_per_second == pytest.approx(450e9)  # NVLink-900G is both directions
    across = slowest_link(topology, [0, 8])
    assert across.bytes_per_second == pytest.approx(50e9)  # the p4d's 400 Gbps
    shared = slowest_link(topology, [0, 8], flows_per_node=4)
    assert shared.bytes_per_second == pytest.approx(12.5e9)


def test_best_never_loses_to_the_flat_ring() -> None:
    topology = benchmark_instance("guide20").topology
    ring = [*range(4), *range(8, 12)]
    flat = all_reduce_seconds(1e9, 8, slowest_link(topology, ring))
    assert best_all_reduce_seconds(1e9, topology, ring) <= flat
