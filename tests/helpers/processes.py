"""Processes that a test starts: how Ctrl-C reaches them, and which of them are still there."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.helpers.demo import MARK


def listen_to_interrupts() -> None:
    """Undo what a shell does to commands in the background: they start with Ctrl-C ignored, and pass it on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def marked(mark: str) -> dict[int, str]:
    """Living processes that inherited the mark: id -> title."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found
