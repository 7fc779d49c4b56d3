"""Signals that end a command before it is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, which batch systems send some time before they kill, raises KeyboardInterrupt as Ctrl-C does."""
    with _handled(signal.default_int_handler, signal.SIGTERM):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Neither Ctrl-C nor SIGTERM ends what takes a moment and loses a result if it is cut off."""
    with _handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM):
        yield


@contextmanager
def _handled(handler: Callable[..., Any] | signal.Handlers, *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, signal.SIG_DFL if each is None else each)
