"""A number worked out beside the search, on a core that it does not use."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType


class Beside:
    """Work out a number in a forked process while the caller goes on.

    The process starts with what this one holds, so nothing is sent to it. Where forking is not safe (not Linux, or
    other threads run), or where there is one core only, the number is worked out when it is asked for.

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
        self._pipe: Connection | None = None
        if sys.platform != "linux" or threading.active_count() > 1 or len(os.sched_getaffinity(0)) == 1:
            return
        maker = multiprocessing.get_context("fork")
        self._pipe, there = maker.Pipe(duplex=False)
        self._process = maker.Process(target=_answer, args=(there, work), daemon=True)
        self._process.start()
        there.close()

    def result(self) -> float:
        """Wait for the number; an error of the work is raised here."""
        if self._pipe is not None:
            with suppress(EOFError):  # the process was killed or the work failed: here it shows its error, or succeeds
                return float(self._pipe.recv())
        return self._work()

    def __enter__(self) -> Beside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._process.terminate()
            self._process.join()


def _answer(pipe: Connection, work: Callable[[], float]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the search, which then still wants the number
    with suppress(Exception):  # the caller repeats the work and meets the same error itself
        pipe.send(work())
