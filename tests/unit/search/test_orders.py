"""The shortest schedule against all orders."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetrl_kernels.orders import shortest_schedules

Activity = tuple[int, int, list[int]]
Ticks = tuple[list[int], list[list[int]]]


def end_in_order(activities: list[Activity], ticks: Ticks, order: tuple[int, ...]) -> int | None:
    """End of the schedule that starts activities in an order; None if one comes before what it needs."""
    seconds, transfers = ticks
    free_at = [0] * 8
    ends: dict[int, int] = {}
    for i in order:
        first, second, needs = activities[i]
        if any(need not in ends for need in needs):
            return None
        ready = [ends[need] + transfer for need, transfer in zip(needs, transfers[i], strict=True)]
        ends[i] = max([free_at[first], free_at[second], *ready]) + seconds[i]
        free_at[first] = free_at[second] = ends[i]
    return max(ends.values())


def brute_force(activities: list[Activity], ticks: Ticks) -> int:
    ends = (end_in_order(activities, ticks, order) for order in permutations(range(len(activities))))
    return min(end for end in ends if end is not None)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[Activity], list[Ticks]]:
    """Up to six activities on up to three groups, and a few sets of ticks."""
    number, groups = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    group = st.integers(0, groups - 1)
    activities = []
    for i in range(number):
        first = draw(group)
        second = draw(group) if draw(st.booleans()) else first
        needs = draw(st.lists(st.integers(0, i - 1), unique=True, max_size=3)) if i else []
        activities.append((min(first, second), max(first, second), sorted(needs)))
    size = st.sampled_from([0, 1, 2, 3, 5, 10, 100])
    ticks = [
        (
            draw(st.lists(size, min_size=number, max_size=number)),
            [[draw(st.sampled_from([0, 0, 1, 4, 30])) for _ in needs] for _, _, needs in activities],
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    return activities, ticks


@settings(max_examples=150, deadline=None)
@given(jobs())
def test_schedules_are_the_shortest_of_all_orders(job: tuple[list[Activity], list[Ticks]]) -> None:
    """Each starts from the order that was best for the ticks before."""
    activities, ticks = job
    assert shortest_schedules(activities, ticks) == [brute_force(activities, each) for each in ticks]


def test_an_order_by_hand() -> None:
    # one group rolls out for 4, then both others score 3 and 5 at the same time; training for 6 waits for both
    activities: list[Activity] = [(0, 0, []), (1, 1, [0]), (2, 2, [0]), (0, 0, [1, 2])]
    assert shortest_schedules(activities, [([4, 3, 5, 6], [[], [0], [0], [0, 0]])]) == [4 + 5 + 6]
    # the long one scores on the group that also trains: 4, then 5 there beside 3, then 6
    colocated: list[Activity] = [(0, 0, []), (1, 1, [0]), (0, 0, [0]), (0, 0, [1, 2])]
    assert shortest_schedules(colocated, [([4, 3, 5, 6], [[], [2], [0], [9, 0]])]) == [4 + 2 + 3 + 9 + 6]


def test_too_many_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        shortest_schedules([(0, 1000, [])], [([1], [[]])])
