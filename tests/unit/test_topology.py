"""Devices are numbered in node order, links follow from nodes and cards."""

from hetrl.spec.presets import benchmark_instance


def test_devices_are_numbered_in_node_order() -> None:
    topology = benchmark_instance("guide20").topology
    assert [device.id for device in topology.devices] == list(range(20))
    assert [device.node for device in topology.devices] == [0] * 8 + [1] * 8 + [2] * 4
    assert [device.local_index for device in topology.devices] == [*range(8), *range(8), *range(4)]
    assert [list(topology.devices_of(node)) for node in range(3)] == [
        list(range(8)), list(range(8, 16)), list(range(16, 20))
    ]  # fmt: skip


def test_the_slower_card_decides_between_nodes() -> None:
    topology = benchmark_instance("guide20").topology
    assert topology.link(0, 15).bytes_per_second == 50e9  # p5 to p4de: 400 Gbps
    assert topology.link(0, 19).bytes_per_second == 12.5e9  # to g6e: 100 Gbps
    assert topology.link(3, 4).bytes_per_second == 450e9  # NVLink, one direction
