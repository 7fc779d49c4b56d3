"""Where the chains of the search run: in this process, in lanes of their own, or on a Ray cluster.

A lane is a process with its own :class:`~hetrl.search.context.SearchContext`. Items of a round are handed out one by
one as lanes become free, an item first to the lane that had the same home before, whose context still knows its
groups. Results come back in the order of the items and do not depend on who worked them out: the kernels keep what
they have computed, and what they have not they compute to the same bits.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from hetrl.search.constraints import NodeRules

Item = TypeVar("Item")
Result = TypeVar("Result")
Handle = TypeVar("Handle", bound=Hashable)
Work = Callable[[NodeRules, Item], Result]
"""A module-level function: what to do with one item, in the lane's context."""
Stopped = Callable[[], bool]


class Crew(AbstractContextManager["Crew"]):
    """Works out the items of a round.

    Attributes
    ----------
    work
        Work counters of ended lanes.
    """

    def __init__(self) -> None:
        self.work: Counter[str] = Counter()

    def __exit__(self, *_: object) -> None:
        self.close()

    def map(
        self, work: Work[Item, Result], items: Sequence[Item], homes: Sequence[Hashable], stopped: Stopped
    ) -> list[Result | None]:
        """Results in the order of the items; None for those not begun when ``stopped()`` became true."""
        raise NotImplementedError

    def close(self) -> None:
        """End the lanes; a second time does nothing."""


class Alone(Crew):
    """The crew of one: everything happens here."""

    def __init__(self, rules: NodeRules) -> None:
        super().__init__()
        self.rules = rules

    def map(
        self, work: Work[Item, Result], items: Sequence[Item], homes: Sequence[Hashable], stopped: Stopped
    ) -> list[Result | None]:
        """Work out one item after the other."""
        return [None if stopped() else work(self.rules, item) for item in items]


class LostLane(Exception):
    """A lane was killed: by the user, or because memory ran out."""

    def __init__(self, lane: Any) -> None:
        super().__init__(lane)
        self.lane = lane


class Lanes(Crew, Generic[Handle]):
    """A crew of several lanes; subclasses say how a lane is given work and how to wait for the first that is done.

    The others, and in the end this process, work out what a lane leaves behind that is killed. ``work["lanes_lost"]``
    counts those.
    """

    def __init__(self, handles: Sequence[Handle], rules: NodeRules) -> None:
        super().__init__()
        self.handles = list(handles)
        self.rules = rules
        self._home: dict[Hashable, Handle] = {}

    def give(self, lane: Handle, work: Work[Any, Any], item: object) -> None:
        """Begin an item in a lane that is free; `LostLane` may be raised here, or when its result is waited for."""
        raise NotImplementedError

    def first_done(self, busy: Sequence[Handle]) -> tuple[Handle, Any]:
        """Wait for one of the lanes, and return it with its result."""
        raise NotImplementedError

    def map(
        self, work: Work[Item, Result], items: Sequence[Item], homes: Sequence[Hashable], stopped: Stopped
    ) -> list[Result | None]:
        """Hand out the items as lanes become free."""
        results: list[Result | None] = [None] * len(items)
        waiting = list(range(len(items)))
        busy: dict[Handle, int] = {}
        while (waiting or busy) and self.handles:
            try:
                for lane in self.handles:
                    if lane not in busy and waiting and not stopped():
                        number = self._next(waiting, homes, lane)
                        waiting.remove(number)
                        self._home[homes[number]] = lane
                        busy[lane] = number
                        self.give(lane, work, items[number])
                if not busy:
                    return results  # stopped
                lane, result = self.first_done(list(busy))
                results[busy.pop(lane)] = result
            except LostLane as lost:
                insort(waiting, busy.pop(lost.lane))
                self.handles.remove(lost.lane)
                self.work["lanes_lost"] += 1
        for number in waiting:  # no lane is left
            if not stopped():
                results[number] = work(self.rules, items[number])
        return results

    def _next(self, waiting: Sequence[int], homes: Sequence[Hashable], lane: Handle) -> int:
        """Choose the first item at home in this lane, else the first that is at home nowhere, else the last of all."""
        for wanted in (lane, None):
            for number in waiting:
                if self._home.get(homes[number]) == wanted:
                    return number
        return waiting[-1]
