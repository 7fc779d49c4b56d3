"""Slowing processes from outside. Asserted are shares of CPU time, not durations."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetrl.errors import SpecError
from hetrl.runtime.throttle import Throttle

BURN = "while True: pass"
CHILD_BURNS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])"


@pytest.fixture(params=[BURN, CHILD_BURNS], ids=["alone", "with child"])
def burner(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    core = max(os.sched_getaffinity(0))
    process = subprocess.Popen(
        [sys.executable, "-c", request.param],
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        start_new_session=True,
    )
    time.sleep(0.5)
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def cpu_seconds(session: int) -> float:
    """CPU time used so far by all processes of a session."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def core_share(session: int, seconds: float = 1.6) -> float:
    used, start = cpu_seconds(session), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(session) - used) / (time.monotonic() - start)


def states(session: int) -> set[str]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        fields = stat.read_text().rsplit(")", 1)[1].split()
        if int(fields[3]) == session:
            found.add(fields[0])
    return found


@pytest.mark.parametrize("method", ["auto", "signal"])
def test_processes_get_at_most_their_duty_and_are_freed_again(burner: subprocess.Popen[bytes], method: str) -> None:
    with Throttle(0.3, [burner.pid], method) as throttle:
        assert throttle.method != "none"
        assert 0 < core_share(burner.pid) < 0.4
    assert "T" not in states(burner.pid)
    assert not list(Path("/sys/fs/cgroup").glob(f"**/hetrl-{os.getpid()}-*"))


@pytest.mark.parametrize("duty", [0.0, -1.0, 1.5])
def test_impossible_duty_is_refused(duty: float) -> None:
    with pytest.raises(SpecError, match="0 < duty <= 1"):
        Throttle(duty, [os.getpid()])


def test_command_line_passes_the_exit_code_on() -> None:
    command = [sys.executable, "-m", "hetrl.runtime.throttle", "--duty", "0.5", "--", "sh", "-c", "exit 7"]
    assert subprocess.run(command, check=False).returncode == 7
