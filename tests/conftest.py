"""What all tests share. A test's folder gives its mark: tests/runtime is `runtime`, tests/gpu is `gpu`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MARKED_FOLDERS = ("runtime", "gpu")
NO_SKIPS = "HETRL_NO_SKIPS"
"""Set in continuous integration, which installs everything: a skipped test fails there, unless hardware is missing."""
HARDWARE = ("no GPU", "one core")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    without_gpu = pytest.mark.skip(reason="no GPU on this machine")
    gpu_visible: bool | None = None
    for item in items:
        room = item.path.relative_to(ROOT / "tests").parts[0] if item.path.is_relative_to(ROOT / "tests") else ""
        if room in MARKED_FOLDERS:
            item.add_marker(room)
        if item.get_closest_marker("gpu"):
            gpu_visible = _gpu_visible() if gpu_visible is None else gpu_visible
            if not gpu_visible:
                item.add_marker(without_gpu)


class NoSkips:
    """Fails a session in which tests were skipped."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.note(report)

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = str(report.longrepr)
        if report.skipped and not hasattr(report, "wasxfail") and not any(each in reason for each in HARDWARE):
            self.skipped.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test in self.skipped:
            terminalreporter.write_line(f"{NO_SKIPS}: skipped: {test}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get(NO_SKIPS) and not hasattr(config, "workerinput"):  # the workers of pytest-xdist report to it
        config.pluginmanager.register(NoSkips())


def _gpu_visible() -> bool:
    """Ask the vendors' tools, so that collecting tests does not import torch."""
    for command in (["nvidia-smi", "-L"], ["rocm-smi", "--showid"]):
        if shutil.which(command[0]) and subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return True
    return False


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the root of the checkout."""
    return ROOT
