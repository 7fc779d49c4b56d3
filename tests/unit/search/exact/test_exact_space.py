"""Node classes, vectors and packings."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.search.exact.problem import ExactProblem
from hetrl.search.exact.space import packings
from hetrl.spec.load import job_from_values
from hetrl.spec.presets import benchmark_instance


def problem_of(nodes: list[dict[str, Any]]) -> ExactProblem:
    job = job_from_values(
        {
            "workflow": {"algorithm": "GRPO", "actor_model": "Qwen2.5-0.5B", "reference_model": "Qwen2.5-0.5B"},
            "cluster_topology": {"nodes": nodes},
            "batch": {"num_prompts": 16, "max_response_tokens": 512},
        },
        source="test",
    )
    return ExactProblem(job, UnitCosts(CostModel.builtin(), job.precision))


def node(name: str, gpus: int, kind: str = "L40S", network: str = "100Gbps") -> dict[str, Any]:
    return {"id": name, "gpus": gpus, "type": kind, "interconnect": "PCIe-Gen4", "network": network}


def test_guide_fleet_has_405_vectors() -> None:
    job = benchmark_instance("guide20")
    space = ExactProblem(job, UnitCosts(CostModel.builtin(), job.precision)).space
    assert [each.num_devices for each in space.classes] == [8, 8, 4]
    assert len(space.vectors) == 9 * 9 * 5 - 1  # the empty vector is none
    assert len(space.partitions) == 203
    assert [len(phase) for phase in space.phases] == [1, 3, 2]


def test_paper_fleet_is_counted_by_type_and_its_wan_by_best_links() -> None:
    for name, best_links in (("paper64_lan/GRPO", False), ("paper64_wan/GRPO", True)):
        job = benchmark_instance(name)
        space = ExactProblem(job, UnitCosts(CostModel.builtin(), job.precision)).space
        assert len(space.vectors) == 25 * 25 * 17 - 1
        assert space.best_links == best_links
        assert ("best link" in space.describe().text) == best_links


def test_equal_nodes_behind_other_links_are_classes_of_their_own() -> None:
    same = problem_of([node("a", 2), node("b", 2), node("c", 2, "H100")]).space
    assert [each.node_ids for each in same.classes] == [("a", "b"), ("c",)]
    other = problem_of([node("a", 2), node("b", 2, network="10Gbps"), node("c", 2, "H100")]).space
    assert [each.node_ids for each in other.classes] == [("a",), ("b",), ("c",)]
    apart = problem_of([node("a", 2), node("c", 2, "H100"), node("b", 2)]).space
    assert len(apart.classes) == 3  # rings go around in the order of nodes


def test_whole_nodes_come_first_and_remainders_share_nodes_in_every_way_that_fits() -> None:
    space = problem_of([node("a", 4), node("b", 4), node("c", 4)]).space
    assert space.counts((6,)).tolist() == [4, 2, 0]
    ways = list(packings(space, [(5,), (1,), (2,)]))
    placed: set[tuple[int, ...]] = set()
    for maps in ways:
        held = np.zeros(3, dtype=int)
        for vector, to in zip([(5,), (1,), (2,)], maps, strict=True):
            counts = space.counts(vector)
            for old in np.flatnonzero(counts):
                held[to[old]] += counts[old]
        assert (held <= 4).all()
        placed.add(tuple(sorted(held.tolist(), reverse=True)))
    # the first group has node a; its 1, the 1 and the 2 share the other two: together, or one or two of them apart
    assert len(ways) == 4
    assert placed == {(4, 4, 0), (4, 3, 1), (4, 2, 2)}


def test_vectors_that_fit_no_node_have_no_packing() -> None:
    space = problem_of([node("a", 4), node("b", 4)]).space
    assert list(packings(space, [(3,), (3,), (2,)])) == []
