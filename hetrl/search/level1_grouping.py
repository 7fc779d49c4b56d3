"""Level 1: partition the tasks into groups that share devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

MAX_UNITS = 7
"""Bell(7) = 877 groupings are looked at one by one; with more tasks, scoring tasks are kept together."""


def groupings(kinds: Sequence[str]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All groupings of tasks of these kinds; beyond `MAX_UNITS` tasks the last scoring tasks form one unit.

    >>> len(list(groupings(["generate", "score", "train"])))
    5
    """
    units: list[tuple[int, ...]] = [(index,) for index in range(len(kinds))]
    while len(units) > MAX_UNITS:
        scoring = [unit for unit in units if kinds[unit[0]] == "score"]
        if len(scoring) < 2:
            break
        merged = tuple(sorted(scoring[-2] + scoring[-1]))
        units = sorted([unit for unit in units if unit not in scoring[-2:]] + [merged])
    for partition in set_partitions(len(units)):
        yield tuple(tuple(sorted(task for unit in group for task in units[unit])) for group in partition)


def set_partitions(num_tasks: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All set partitions of the tasks 0..n-1, each group and the groups in task order (Bell(6) = 203).

    >>> [len(partition) for partition in set_partitions(3)]
    [1, 2, 2, 2, 3]
    """
    if num_tasks == 0:
        yield ()
        return

    def extend(index: int, groups: tuple[tuple[int, ...], ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
        if index == num_tasks:
            yield groups
            return
        for position, group in enumerate(groups):
            yield from extend(index + 1, (*groups[:position], (*group, index), *groups[position + 1 :]))
        yield from extend(index + 1, (*groups, (index,)))

    yield from extend(1, ((0,),))
