"""Level 1: set partitions, and their limit."""

from __future__ import annotations

from hetrl.search.level1_grouping import MAX_UNITS, groupings, set_partitions

BELL = {1: 1, 2: 2, 3: 5, 4: 15, 5: 52, 6: 203, 7: 877}


def test_all_partitions_once() -> None:
    for size, number in BELL.items():
        found = list(set_partitions(size))
        assert len(set(found)) == len(found) == number
        assert all(sorted(task for group in partition for task in group) == list(range(size)) for partition in found)


def test_many_rewards_stay_countable_and_complete() -> None:
    kinds = ["generate", *["score"] * 8, "train", "train"]
    found = list(groupings(kinds))
    assert len(found) == BELL[MAX_UNITS]
    assert all(sorted(task for group in partition for task in group) == list(range(len(kinds))) for partition in found)
