"""Step times of many plans at once: every order of the activities, tried on whole grids of seconds.

An oracle beside `hetrl.cost.schedule`: no bounds, no pruning, no search; each topological order is replayed and the
shortest kept. Seconds are arrays that broadcast to the grid of all combinations of the groups' choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridActivity:
    """One activity: seconds on the grid, the groups it occupies, and (need, transfer seconds on the grid)."""

    name: str
    seconds: Floats
    groups: tuple[int, ...]
    needs: tuple[tuple[str, Floats], ...] = ()


def topological_orders(activities: Sequence[GridActivity]) -> Iterator[tuple[GridActivity, ...]]:
    """All orders, one for each way in which groups can serve their activities."""
    seen: set[tuple[tuple[str, ...], ...]] = set()
    groups = sorted({group for activity in activities for group in activity.groups})

    def extend(order: tuple[GridActivity, ...]) -> Iterator[tuple[GridActivity, ...]]:
        if len(order) == len(activities):
            service = tuple(tuple(each.name for each in order if group in each.groups) for group in groups)
            if service not in seen:
                seen.add(service)
                yield order
            return
        done = {activity.name for activity in order}
        for activity in activities:
            if activity.name not in done and all(need in done for need, _ in activity.needs):
                yield from extend((*order, activity))

    yield from extend(())


def synchronous_seconds(activities: Sequence[GridActivity]) -> Floats:
    """Shortest step over all orders, for every point of the grid."""
    best: Floats | None = None
    for order in topological_orders(activities):
        end: dict[str, Floats] = {}
        free: dict[int, Floats] = {}
        for activity in order:
            waits = [end[need] + transfer for need, transfer in activity.needs]
            waits += [free[group] for group in activity.groups if group in free]
            start = np.zeros(1)
            for each in waits:
                start = np.maximum(start, each)
            end[activity.name] = start + activity.seconds
            free.update(dict.fromkeys(activity.groups, end[activity.name]))
        last = np.zeros(1)
        for each in end.values():
            last = np.maximum(last, each)
        best = last if best is None else np.minimum(best, last)
    assert best is not None
    return best


def asynchronous_seconds(activities: Sequence[GridActivity], staleness: int) -> Floats:
    """Period: the most loaded group, or the longest path through one step over ``1 + staleness``."""
    load: dict[int, Floats] = {}
    until: dict[str, Floats] = {}
    for activity in activities:
        for group in activity.groups:
            load[group] = load.get(group, np.zeros(1)) + activity.seconds
        start = np.zeros(1)
        for need, transfer in activity.needs:
            start = np.maximum(start, until[need] + transfer)
        until[activity.name] = start + activity.seconds
    period = np.zeros(1)
    for each in load.values():
        period = np.maximum(period, each)
    for each in until.values():
        period = np.maximum(period, each / (1 + staleness))
    return period


def step_grid(activities: Sequence[GridActivity], staleness: int) -> Floats:
    """Step time, or period where steps overlap."""
    return asynchronous_seconds(activities, staleness) if staleness > 0 else synchronous_seconds(activities)


def broadcast(values: Sequence[float] | Floats | Mapping[int, float], axis: int, num_axes: int) -> Floats:
    """Values along one axis of the grid."""
    shape = [1] * num_axes
    shape[axis] = -1
    return np.asarray(values, dtype=np.float64).reshape(shape)
