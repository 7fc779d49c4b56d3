"""Slow processes from outside, to a fraction of their speed, blind to what they do.

Stands in for slower hardware: two equal CPU cores become devices of unequal speed without their workers, the
profiler or the planner being told. Two ways, chosen by what the machine allows:

- a cgroup CPU quota (v1 ``cpu.cfs_quota_us`` or v2 ``cpu.max``) of ``duty`` times one core;
- a SIGSTOP/SIGCONT duty cycle over the process tree.

Around a command, with one core of its own::

    python -m hetrl.runtime.throttle --duty 0.5 --core 1 -- python train.py
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from hetrl.errors import Problem, SpecError

QUOTA_PERIOD_SECONDS = 0.02
SIGNAL_PERIOD_SECONDS = 0.08
CYCLES_PER_TREE_WALK = 10
REMOVE_ATTEMPTS = 100
REMOVE_PAUSE_SECONDS = 0.1
METHODS = ("auto", "cgroup", "signal")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_serial = itertools.count()


class Throttle:
    """Processes held to ``duty`` of one core until :meth:`close`.

    Parameters
    ----------
    duty
        Fraction of one core's time, above 0 and at most 1; 1 leaves the processes alone.
    pids
        Processes; their children, present and future, are slowed with them.
    method
        ``cgroup``, ``signal``, or ``auto``: the first where the machine allows it, else the second.

    Attributes
    ----------
    method
        What is in force: ``none``, ``cgroup-v1``, ``cgroup-v2`` or ``signal``.

    Raises
    ------
    SpecError
        If ``duty`` or ``method`` is out of range, or ``cgroup`` was asked for and the machine refuses it.
    """

    def __init__(self, duty: float, pids: Iterable[int], method: str = "auto") -> None:
        if not 0 < duty <= 1:
            raise SpecError(Problem(path="throttle", message="not a duty", found=str(duty), valid="0 < duty <= 1"))
        if method not in METHODS:
            raise SpecError(Problem(path="throttle", message="unknown method", found=method, valid=", ".join(METHODS)))
        self.method = "none"
        self._group: _Cgroup | None = None
        self._cycler: subprocess.Popen[bytes] | None = None
        if duty == 1:
            return
        tree = _process_tree(pids)
        if method in ("auto", "cgroup"):
            try:
                self._group = _Cgroup.make(duty, tree)
                self.method = self._group.version
                return
            except OSError as error:
                if method == "cgroup":
                    raise SpecError(
                        Problem(path="throttle", message=f"this machine refuses a CPU quota: {error}", valid="signal")
                    ) from error
        self.method = "signal"
        arguments = [argument for pid in pids for argument in ("--pid", str(pid))]
        self._cycler = subprocess.Popen(
            [sys.executable, "-m", "hetrl.runtime.throttle", "--duty", str(duty), *arguments], stdin=subprocess.PIPE
        )

    def close(self) -> None:
        """Let the processes run freely again."""
        if self._group is not None:
            self._group.remove()
            self._group = None
        if self._cycler is not None:
            assert self._cycler.stdin is not None
            self._cycler.stdin.close()
            self._cycler.wait(timeout=10)
            self._cycler = None

    def __enter__(self) -> Throttle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Cgroup:
    """A group of processes under a CPU quota."""

    def __init__(self, version: str, parent: Path, path: Path) -> None:
        self.version = version
        self._parent = parent
        self._path = path

    @classmethod
    def make(cls, duty: float, pids: Sequence[int]) -> _Cgroup:
        """Make a group of ``pids`` with ``duty`` of one core."""
        version, parent = _own_cgroup()
        path = parent / f"hetrl-{os.getpid()}-{next(_serial)}"
        path.mkdir()
        group = cls(version, parent, path)
        period_us = round(QUOTA_PERIOD_SECONDS * 1e6)
        quota_us = round(duty * period_us)
        try:
            if version == "cgroup-v1":
                (path / "cpu.cfs_period_us").write_text(str(period_us))
                (path / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (path / "cpu.max").write_text(f"{quota_us} {period_us}")
            for pid in pids:
                (path / "cgroup.procs").write_text(str(pid))
        except OSError:
            group.remove()
            raise
        return group

    def remove(self) -> None:
        """Move the members back and remove the group."""
        for attempt in range(REMOVE_ATTEMPTS):
            for pid in (self._path / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                    (self._parent / "cgroup.procs").write_text(pid)
            try:
                self._path.rmdir()
                return
            except OSError as error:  # a member that just ended keeps the group busy until it is reaped
                if error.errno != errno.EBUSY or attempt == REMOVE_ATTEMPTS - 1:
                    raise
                time.sleep(REMOVE_PAUSE_SECONDS)


def remove_groups_of(pid: int) -> None:
    """Remove the groups that a killed process has left; whatever still runs in them runs freely again."""
    try:
        version, parent = _own_cgroup()
    except OSError:  # then it cannot have made any
        return
    for path in parent.glob(f"hetrl-{pid}-*"):
        _Cgroup(version, parent, path).remove()


def _own_cgroup() -> tuple[str, Path]:
    """Return which version controls CPU time here and the folder of this process's group."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            mount = next((each for each in ("cpu", "cpu,cpuacct") if (_CGROUP_ROOT / each).is_dir()), "cpu")
            return "cgroup-v1", _CGROUP_ROOT / mount / path.lstrip("/")
        if hierarchy == "0" and (_CGROUP_ROOT / "cgroup.controllers").exists():
            return "cgroup-v2", _CGROUP_ROOT / path.lstrip("/")
    raise OSError("no cgroup controls CPU time here")


def _process_tree(pids: Iterable[int]) -> list[int]:
    """Return ``pids`` and all their descendants that are alive, parents first."""
    found: dict[int, None] = {}
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        try:
            children = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/children")]
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        if children:
            found[pid] = None
            waiting += (int(child) for line in children for child in line.split())
    return list(found)


def _send(pids: Iterable[int], what: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            continue


def _cycle(duty: float, pids: Sequence[int]) -> None:
    """Stop and continue the trees of ``pids`` until standard input closes or all of them have ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tree = _process_tree(pids)
    start = time.monotonic()
    try:
        for cycle in itertools.count():
            if cycle % CYCLES_PER_TREE_WALK == 0:
                tree = _process_tree(pids)
                if not tree:
                    return
            _send(tree, signal.SIGSTOP)
            running_from = start + (cycle + 1 - duty) * SIGNAL_PERIOD_SECONDS
            ended, _, _ = select.select([sys.stdin], [], [], max(0.0, running_from - time.monotonic()))
            _send(tree, signal.SIGCONT)
            if ended:
                return
            time.sleep(max(0.0, start + (cycle + 1) * SIGNAL_PERIOD_SECONDS - time.monotonic()))
    finally:
        _send(tree, signal.SIGCONT)


def _run_command(command: Sequence[str], duty: float, core: int | None, method: str) -> int:
    """Run a command slowed from its first instruction on; return its exit code."""
    ready_read, ready_write = os.pipe()

    def wait_for_throttle() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})
        os.close(ready_write)
        os.read(ready_read, 1)

    pid = os.fork()
    if pid == 0:
        wait_for_throttle()
        try:
            os.execvp(command[0], list(command))
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)
    os.close(ready_read)
    with Throttle(duty, [pid], method):
        os.close(ready_write)
        while True:
            try:
                _, status = os.waitpid(pid, 0)
                break
            except KeyboardInterrupt:  # the command got it too; its exit decides
                continue
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m hetrl.runtime.throttle", description="Slow a command or processes."
    )
    parser.add_argument("--duty", type=float, required=True, help="fraction of one core, e.g. 0.5")
    parser.add_argument("--core", type=int, help="run the command on this core only")
    parser.add_argument("--method", choices=METHODS, default="auto")
    parser.add_argument("--pid", type=int, action="append", default=[], help="stop/continue this process tree")
    parser.add_argument("command", nargs="*", help="command to run, after --")
    options = parser.parse_args(arguments)
    if bool(options.command) == bool(options.pid):
        parser.error("give either a command after -- or --pid")
    try:
        if options.command:
            return _run_command(options.command, options.duty, options.core, options.method)
        if not 0 < options.duty < 1:
            parser.error("--duty must lie between 0 and 1")
        _cycle(options.duty, options.pid)
    except SpecError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
