"""The step as a schedule: tasks of one group do not overlap, edges of the task graph carry transfers.

The step time is the minimum over orders of the longest path. Graphs are small (a handful of tasks), so all orders
that matter are tried, depth first, with the rest of the longest path as bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One node of the schedule: a task, or a weight sync that occupies two groups.

    Parameters
    ----------
    needs
        (name of an earlier activity, seconds of the transfer from it).
    """

    name: str
    seconds: float
    groups: tuple[int, ...]
    needs: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Start and end of every activity, and the chain of activities that decides the end."""

    start: Mapping[str, float] = field(default_factory=dict)
    end: Mapping[str, float] = field(default_factory=dict)
    critical_path: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """End of the last activity."""
        return max(self.end.values(), default=0.0)


def longest_tails(activities: Sequence[Activity]) -> dict[str, float]:
    """Longest path from the start of each activity to the end of the graph, groups ignored."""
    tails: dict[str, float] = {}
    followers: dict[str, list[tuple[str, float]]] = {activity.name: [] for activity in activities}
    for activity in activities:
        for need, transfer in activity.needs:
            followers[need].append((activity.name, transfer))
    for activity in reversed(activities):
        after = max((transfer + tails[name] for name, transfer in followers[activity.name]), default=0.0)
        tails[activity.name] = activity.seconds + after
    return tails


def best_schedule(activities: Sequence[Activity]) -> Schedule:
    """Return the shortest schedule over all orders in which groups may serve their activities.

    Parameters
    ----------
    activities
        In a topological order.
    """
    tails = longest_tails(activities)
    by_name = {activity.name: activity for activity in activities}
    best_seconds = float("inf")
    best_order: tuple[str, ...] = ()

    def place(order: tuple[str, ...], end: dict[str, float], free: dict[int, float]) -> None:
        nonlocal best_seconds, best_order
        if len(order) == len(activities):
            seconds = max(end.values())
            if seconds < best_seconds:
                best_seconds, best_order = seconds, order
            return
        ready = [
            activity
            for activity in activities
            if activity.name not in end and all(need in end for need, _ in activity.needs)
        ]
        waiting = [activity for activity in activities if activity.name not in end]
        for activity in ready:  # nobody else wants its groups: no choice to make
            mine = set(activity.groups)
            if not any(mine & set(other.groups) for other in waiting if other is not activity):
                ready = [activity]
                break
        for activity in ready:
            start = _earliest(activity, end, free)
            if start + tails[activity.name] >= best_seconds:
                continue
            finished = start + activity.seconds
            place(
                (*order, activity.name),
                {**end, activity.name: finished},
                {**free, **dict.fromkeys(activity.groups, finished)},
            )

    place((), {}, {})
    return replay([by_name[name] for name in best_order])


def _earliest(activity: Activity, end: Mapping[str, float], free: Mapping[int, float]) -> float:
    after_needs = max((end[need] + transfer for need, transfer in activity.needs), default=0.0)
    return max(after_needs, max((free.get(group, 0.0) for group in activity.groups), default=0.0))


def replay(order: Sequence[Activity]) -> Schedule:
    """Schedule activities in a given order, each as early as its needs and groups allow."""
    start: dict[str, float] = {}
    end: dict[str, float] = {}
    free: dict[int, float] = {}
    last_in_group: dict[int, str] = {}
    cause: dict[str, str] = {}
    for activity in order:
        begin = _earliest(activity, end, free)
        blockers = [need for need, transfer in activity.needs if end[need] + transfer == begin]
        blockers += [last_in_group[group] for group in activity.groups if free.get(group) == begin]
        if blockers and begin > 0:
            cause[activity.name] = blockers[0]
        start[activity.name] = begin
        end[activity.name] = begin + activity.seconds
        for group in activity.groups:
            free[group] = end[activity.name]
            last_in_group[group] = activity.name
    path: list[str] = []
    current = max(end, key=lambda name: end[name]) if end else ""
    while current:
        path.append(current)
        current = cause.get(current, "")
    return Schedule(start=start, end=end, critical_path=tuple(reversed(path)))


def asynchronous_period(activities: Sequence[Activity], staleness: int) -> float:
    """Period of an asynchronous pipeline with bounded staleness: ``max(largest group load, loop / (1 + eta))``.

    The loop latency is the longest path through one step; a weight sync loads both of its groups.
    """
    load: dict[int, float] = {}
    for activity in activities:
        for group in activity.groups:
            load[group] = load.get(group, 0.0) + activity.seconds
    tails = longest_tails(activities)
    loop = max(tails.values(), default=0.0)
    return max(max(load.values(), default=0.0), loop / (1 + staleness))
