"""What all tests share. A test's folder gives its mark: tests/runtime is `runtime`, tests/gpu is `gpu`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MARKED_FOLDERS = ("runtime", "gpu")


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
