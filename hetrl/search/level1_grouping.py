"""Level 1: partition the tasks into groups that share devices."""

from __future__ import annotations

from collections.abc import Iterator


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
