"""Level 1: partition the tasks into groups that share devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def set_partitions(names: Sequence[str]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """All set partitions of the tasks, each group and the groups in task order (Bell(6) = 203).

    >>> [len(p) for p in set_partitions(["a", "b", "c"])]
    [1, 2, 2, 2, 3]
    """
    if not names:
        yield ()
        return

    def extend(index: int, groups: tuple[tuple[str, ...], ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
        if index == len(names):
            yield groups
            return
        for position, group in enumerate(groups):
            yield from extend(index + 1, (*groups[:position], (*group, names[index]), *groups[position + 1 :]))
        yield from extend(index + 1, (*groups, (names[index],)))

    yield from extend(1, ((names[0],),))
