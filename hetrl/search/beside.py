"""A number worked out beside the search, on a core that it does not use."""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
from collections.abc import Callable
from types import TracebackType

DOUBLE = struct.Struct("d")


class Beside:
    """Work out a number in a forked process while the caller goes on.

    The process starts with what this one holds, so nothing is sent to it. Where forking is not safe (not Linux, or
    other threads run), or where there is one core only, the number is worked out when it is asked for. Written with
    ``os.fork``: importing `multiprocessing` takes longer than the number of a small job.

    Parameters
    ----------
    work
        Gives the number; the same in whichever process it runs.

    Examples
    --------
    >>> with Beside(lambda: 0.5) as half:
    ...     half.result()
    0.5
    """

    def __init__(self, work: Callable[[], float]) -> None:
        self._work = work
        self._process = 0
        if sys.platform != "linux" or threading.active_count() > 1 or len(os.sched_getaffinity(0)) == 1:
            return
        self._pipe, there = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            _answer(there, work)
        os.close(there)

    def result(self) -> float:
        """Wait for the number; an error of the work is raised here."""
        if self._process:
            answer = os.read(self._pipe, DOUBLE.size)
            if len(answer) == DOUBLE.size:
                return float(DOUBLE.unpack(answer)[0])
        return self._work()  # the process was killed or the work failed: here it shows its error, or succeeds

    def __enter__(self) -> Beside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process:
            os.close(self._pipe)
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            self._process = 0


def _answer(pipe: int, work: Callable[[], float]) -> None:
    """Work out the number and end, without what a Python process does at its end: all of that is the caller's."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM):  # they end the search, which then still wants the number
            signal.signal(number, signal.SIG_IGN)
        os.write(pipe, DOUBLE.pack(work()))
    finally:  # an error says nothing here: the caller repeats the work and meets it
        os._exit(0)
