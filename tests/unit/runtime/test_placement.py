"""Which plans Ray can place; checked without Ray."""

from __future__ import annotations

import pytest

from hetrl.runtime.cluster import offers_of_ray
from hetrl.runtime.placement import NodeNeed, placement_problems


def need(number: int, device_type: str, count: int) -> NodeNeed:
    return NodeNeed(node=number, id=f"n{number}", device_type=device_type, devices=tuple(range(count)))


@pytest.mark.parametrize(
    ("needs", "offers"),
    [
        ([need(0, "A", 8), need(1, "B", 4)], [{"B": 4}, {"A": 8}]),
        ([need(0, "A", 2), need(1, "A", 8)], [{"A": 8}, {"A": 2}]),
        ([need(0, "A", 2)], [{"A": 8, "B": 1}, {}]),
    ],
)
def test_nodes_that_fit_in_some_order_are_accepted(needs: list[NodeNeed], offers: list[dict[str, int]]) -> None:
    assert placement_problems(needs, offers) == []


@pytest.mark.parametrize(
    ("needs", "offers", "message"),
    [
        ([need(0, "H100", 8)], [{"L40S": 8}], "Ray has no device of type H100"),
        ([need(0, "A", 8), need(1, "A", 8)], [{"A": 8}], "Ray has 8 devices of type A, the plan uses 16"),
        ([need(0, "A", 8)], [{"A": 4}, {"A": 4}], "A: the plan uses nodes of 8 devices, Ray has nodes of 4, 4"),
        ([need(0, "A", 4), need(1, "A", 4)], [{"A": 8}], "A: the plan uses nodes of 4, 4 devices, Ray has nodes of 8"),
        ([need(0, "A", 1)], [], "Ray has no device of type A"),
    ],
)
def test_what_does_not_fit_is_named(needs: list[NodeNeed], offers: list[dict[str, int]], message: str) -> None:
    (problem,) = placement_problems(needs, offers)
    assert problem.message == message


def test_every_missing_type_is_named_and_close_names_are_suggested() -> None:
    problems = placement_problems([need(0, "cpu-fats", 1), need(1, "TPU", 1)], [{"cpu-fast": 1}])
    assert [problem.path for problem in problems] == ["nodes n0", "nodes n1"]
    assert "did you mean 'cpu-fast'?" in problems[0].message
    assert problems[1].valid == "what Ray offers: 1 cpu-fast"


def test_offers_are_read_from_living_nodes_only() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8.0, "hetrl_device:A": 2.0}},
        {"Alive": False, "Resources": {"hetrl_device:A": 4.0}},
        {"Alive": True, "Resources": {"CPU": 1.0}},
    ]
    assert offers_of_ray(nodes) == [{"A": 2}, {}]
