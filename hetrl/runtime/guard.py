"""A guard beside a Ray of our own: when the launcher ends, however it ends, nothing of that Ray stays behind.

It is a process of its own that waits for its standard input to close, which happens also when the launcher is killed.
Everything that belongs to the Ray carries its folder in the environment, so only that is ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from hetrl.runtime.throttle import remove_groups_of

FOLDER_VARIABLE = "RAY_TMPDIR"
_ROUNDS = 50
_ROUND_SECONDS = 0.1


class Guard:
    """The guard of one folder, started by the launcher."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "hetrl.runtime.guard", str(folder), str(os.getpid())]
        # A session of its own: a Ctrl-C in the terminal is not for the guard.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def dismiss(self) -> None:
        """Have what is left ended and removed now."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def processes_of(folder: Path, launcher: int) -> list[int]:
    """Return the living processes, except the launcher, that were started for this folder or write to files in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if int(process.name) == launcher:  # Ray's client in it keeps a log there
                continue
            if _has_variable(process, folder) or _writes_into(process, folder):
                found.append(int(process.name))
    return found


def _has_variable(process: Path, folder: Path) -> bool:
    return f"{FOLDER_VARIABLE}={folder}".encode() in (process / "environ").read_bytes().split(b"\0")


def _writes_into(process: Path, folder: Path) -> bool:
    """Say whether it has a file in the folder open for writing; a title set later may have hidden the variable."""
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(descriptor).startswith(f"{folder}/"):
                flags = (process / "fdinfo" / descriptor.name).read_text().split("flags:", 1)[1].split(None, 1)[0]
                if int(flags, 8) & (os.O_WRONLY | os.O_RDWR):
                    return True
    return False


def end_processes(folder: Path, launcher: int) -> None:
    """Kill them, again and again while they start others."""
    for _ in range(_ROUNDS):
        living = processes_of(folder, launcher)
        if not living:
            return
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_ROUND_SECONDS)


def main(folder: Path, launcher: int) -> None:
    """Wait for the launcher's end, then clean up."""
    sys.stdin.buffer.read()
    end_processes(folder, launcher)
    shutil.rmtree(folder, ignore_errors=True)
    remove_groups_of(launcher)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
