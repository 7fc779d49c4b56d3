"""A number beside the search: from another process, or from this one where that is not possible."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from hetrl.search.beside import Beside

SEVERAL_CORES = len(os.sched_getaffinity(0)) > 1


@pytest.mark.skipif(not SEVERAL_CORES, reason="one core: nothing runs beside")
def test_the_work_is_done_in_another_process() -> None:
    with Beside(lambda: float(os.getpid())) as pid:
        assert pid.result() != os.getpid()


def test_the_work_is_done_here_while_other_threads_run() -> None:
    """A fork would copy their locks."""
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        with Beside(lambda: float(os.getpid())) as pid:
            assert pid.result() == os.getpid()
    finally:
        go.set()
        thread.join()


def test_errors_of_the_work_are_raised_where_the_number_is_wanted() -> None:
    def fail() -> float:
        raise ValueError("no number")

    with Beside(fail) as number, pytest.raises(ValueError, match="no number"):
        number.result()


@pytest.mark.skipif(not SEVERAL_CORES, reason="one core: nothing runs beside")
def test_a_killed_process_is_replaced_by_this_one() -> None:
    here = os.getpid()

    def work() -> float:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return 3.0

    with Beside(work) as number:
        assert number.result() == 3.0


def test_an_error_of_the_search_does_not_wait_for_the_number() -> None:
    start = time.process_time()
    with pytest.raises(KeyError), Beside(lambda: time.sleep(3600) or 0.0):  # type: ignore[func-returns-value]
        raise KeyError("the search")
    assert time.process_time() - start < 60
