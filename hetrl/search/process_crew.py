"""Lanes of the search as processes of this machine; imported only where there are several."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from hetrl.search.constraints import NodeRules
from hetrl.search.crew import Lanes, LostLane, Work


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
        self._processes: dict[Connection, BaseProcess] = {}
        for _ in range(num_lanes):
            here, there = maker.Pipe()
            inherited = (*self._processes, here) if start_method == "fork" else ()
            process = maker.Process(target=_serve, args=(there, rules, inherited), daemon=True)  # type: ignore[attr-defined]
            process.start()
            there.close()
            self._processes[here] = process
        super().__init__(list(self._processes), rules)

    def give(self, lane: Connection, work: Work[Any, Any], item: object) -> None:
        """Send the item to the process."""
        try:
            lane.send((work, item))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise LostLane(lane) from error

    def first_done(self, busy: Sequence[Connection]) -> tuple[Connection, Any]:
        """Wait for the pipes."""
        ready = wait(busy)
        lane = next(each for each in busy if each in ready)
        try:
            succeeded, result = lane.recv()
        except (EOFError, ConnectionResetError) as error:
            raise LostLane(lane) from error
        if not succeeded:
            raise result
        return lane, result

    def close(self) -> None:
        """Ask every process for its counters and let it end; one that still works on an item is terminated."""
        for lane, process in self._processes.items():
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
        self.handles, self._processes = [], {}


def _serve(pipe: Connection, rules: NodeRules, inherited: tuple[Connection, ...]) -> None:
    """Run a lane: work out items until told to stop, or until the search is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the search's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
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
