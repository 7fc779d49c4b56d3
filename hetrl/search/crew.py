"""Where the chains of the search run: in this process, in lanes of their own, or on a Ray cluster.

A lane is a process with its own :class:`~hetrl.search.context.SearchContext`. Items of a round are handed out one by
one as lanes become free, an item first to the lane that had the same home before, whose context still knows its
groups. Results come back in the order of the items and do not depend on who worked them out: the kernels keep what
they have computed, and what they have not they compute to the same bits.
"""

from __future__ import annotations

import copyreg
import multiprocessing
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection, wait
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from hetrl.search.constraints import NodeRules

Item = TypeVar("Item")
Result = TypeVar("Result")
Handle = TypeVar("Handle", bound=Hashable)
Work = Callable[[NodeRules, Item], Result]
"""A module-level function: what to do with one item, in the lane's context."""
Stopped = Callable[[], bool]


def _read_only(table: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(table)


copyreg.pickle(MappingProxyType, lambda view: (_read_only, (dict(view),)))  # device types hold such tables


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


class Lanes(Crew, Generic[Handle]):
    """A crew of several lanes; subclasses say how a lane is given work and how to wait for the first that is done."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        super().__init__()
        self.handles = list(handles)
        self._home: dict[Hashable, Handle] = {}

    def give(self, lane: Handle, work: Work[Any, Any], item: object) -> None:
        """Begin an item in a lane that is free."""
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
        while waiting or busy:
            for lane in self.handles:
                if lane not in busy and waiting and not stopped():
                    number = self._next(waiting, homes, lane)
                    waiting.remove(number)
                    self._home[homes[number]] = lane
                    busy[lane] = number
                    self.give(lane, work, items[number])
            if not busy:
                break  # stopped
            lane, result = self.first_done(list(busy))
            results[busy.pop(lane)] = result
        return results

    def _next(self, waiting: Sequence[int], homes: Sequence[Hashable], lane: Handle) -> int:
        """Choose the first item at home in this lane, else the first that is at home nowhere, else the last of all."""
        for wanted in (lane, None):
            for number in waiting:
                if self._home.get(homes[number]) == wanted:
                    return number
        return waiting[-1]


class Processes(Lanes[Connection]):
    """Lanes that are processes on this machine.

    Parameters
    ----------
    num_lanes
        How many.
    rules
        Context and constraints. A forked lane starts with a copy of the context, a spawned one lowers the job anew.
    start_method
        ``fork`` or ``spawn``; None takes ``fork`` where that is safe: on Linux, from a process without other threads.
    """

    def __init__(self, num_lanes: int, rules: NodeRules, start_method: str | None = None) -> None:
        if start_method is None:
            start_method = "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"
        maker = multiprocessing.get_context(start_method)
        ours: list[Connection] = []
        self._processes = []
        for _ in range(num_lanes):
            here, there = maker.Pipe()
            ours.append(here)
            inherited = tuple(ours) if start_method == "fork" else ()
            process = maker.Process(target=_serve, args=(there, rules, inherited), daemon=True)  # type: ignore[attr-defined]
            process.start()
            there.close()
            self._processes.append(process)
        super().__init__(ours)

    def give(self, lane: Connection, work: Work[Any, Any], item: object) -> None:
        """Send the item to the process."""
        lane.send((work, item))

    def first_done(self, busy: Sequence[Connection]) -> tuple[Connection, Any]:
        """Wait for the pipes."""
        ready = wait(busy)
        lane = next(each for each in busy if each in ready)
        try:
            succeeded, result = lane.recv()
        except EOFError as error:
            raise RuntimeError("a lane of the search ended unexpectedly (out of memory?)") from error
        if not succeeded:
            raise result
        return lane, result

    def close(self) -> None:
        """Ask every process for its counters and let it end; one that still works on an item is terminated."""
        for lane, process in zip(self.handles, self._processes, strict=True):
            with suppress(OSError, EOFError):
                lane.send(None)
                if lane.poll(0.5):
                    answer = lane.recv()
                    if isinstance(answer, Counter):
                        self.work.update(answer)
            lane.close()
            process.join(0.5)
            if process.is_alive():
                process.terminate()
                process.join()
        self.handles, self._processes = [], []


def _serve(pipe: Connection, rules: NodeRules, inherited: tuple[Connection, ...]) -> None:
    """Run a lane: work out items until told to stop, or until the search is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the search's to handle
    for end in inherited:  # or the lane would keep the search's own ends open, and never see it go
        end.close()
    before = rules.context.work()
    with suppress(EOFError, BrokenPipeError):
        while (message := pipe.recv()) is not None:
            work, item = message
            try:
                answer = (True, work(rules, item))
            except Exception as error:
                answer = (False, error)
            pipe.send(answer)
        counters = rules.context.work()
        counters.subtract(before)
        pipe.send(counters)
