"""Where everything is installed, as in continuous integration, a skipped test fails the session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = {
    "skipped": "@pytest.mark.skip(reason='an extra is missing')\ndef test(): pass",
    "skipped inside": "def test(): pytest.importorskip('no_such_module')",
    "skipped as a file": "pytest.importorskip('no_such_module')",
    "no GPU": "@pytest.mark.skip(reason='no GPU on this machine')\ndef test(): pass",
    "expected to fail": "@pytest.mark.xfail\ndef test(): assert False",
    "passes": "def test(): pass",
}


def run(tmp_path: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_it.py").write_text(f"import pytest\n{text}\ndef test_another(): pass\n")
    inherited = {name: value for name, value in os.environ.items() if name != "HETRL_NO_SKIPS"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "test_it.py"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**inherited, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
    )  # fmt: skip


@pytest.mark.parametrize(("name", "text"), TESTS.items())
def test_skips_fail_only_where_they_are_not_allowed(name: str, text: str, tmp_path: Path) -> None:
    fails = name.startswith("skipped")
    told = run(tmp_path, text, HETRL_NO_SKIPS="1")
    assert (told.returncode != 0) == fails, told.stdout
    assert ("HETRL_NO_SKIPS: skipped: test_it.py" in told.stdout) == fails


def test_elsewhere_a_skip_is_a_skip(tmp_path: Path) -> None:
    assert run(tmp_path, TESTS["skipped"]).returncode == 0
