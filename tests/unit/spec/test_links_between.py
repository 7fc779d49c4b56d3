"""Links between sets of nodes, equal ones once, against all of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hetrl.spec.load import job_from_values
from hetrl.spec.topology import Topology

SPECS = (
    {"network": "100Gbps", "interconnect": "NVLink-600G"},
    {"network": "10Gbps", "interconnect": "PCIe-Gen4", "rack": "a"},
    {"network": "100Gbps", "interconnect": "PCIe-Gen4", "rack": "b", "zone": "z"},
    {"network": "100Gbps", "interconnect": "NVLink-600G", "region": "far"},
)


def fleet(kinds: list[int], given_links: set[tuple[int, int]]) -> Topology:
    nodes = [{"id": f"node-{index}", "gpus": 1, "type": "H100", **SPECS[kind]} for index, kind in enumerate(kinds)]
    links = [
        {"from": f"node-{a}", "to": f"node-{b}", "bandwidth": "7Gbps", "latency": "3ms"} for a, b in sorted(given_links)
    ]
    values = {
        "workflow": {
            "algorithm": "GRPO",
            **dict.fromkeys(("actor_model", "reference_model", "reward_model"), "Qwen2.5-0.5B"),
        },
        "cluster_topology": {
            "nodes": nodes,
            "links": links,
            "network": {
                "rack": {"bandwidth": "50Gbps", "latency": "10us"},
                "wan": {"bandwidth": "1Gbps", "latency": "60ms"},
            },
        },
    }
    return job_from_values(values, source="fleet").topology


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_kind_of_link_is_found(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.integers(0, len(SPECS) - 1), min_size=1, max_size=6))
    index = st.integers(0, len(kinds) - 1)
    pairs = data.draw(st.sets(st.tuples(index, index).filter(lambda pair: pair[0] < pair[1]), max_size=2))
    topology = fleet(kinds, pairs)
    sources, targets = data.draw(st.sets(index, min_size=1)), data.draw(st.sets(index, min_size=1))
    found = topology.links_between(sorted(sources), sorted(targets))
    assert set(found) == {topology.node_link(a, b) for a in sources for b in targets if a != b}


def test_equal_links_are_looked_at_once() -> None:
    topology = fleet([0] * 50 + [1] * 50, set())
    assert len(topology.links_between(range(100), range(100))) == 4
