"""Output that cannot be written: no result is lost for it, nothing is called a defect, work never runs in vain."""

from __future__ import annotations

import ast
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hetrl.errors import SpecError
from hetrl.files import check_appendable, check_writable
from hetrl.tools import fit, plan, predict, profile, refit
from tests.helpers.jobs import TWO_NODES

TOOLS = Path(plan.__file__).parent
COMMANDS = {
    "plan": ["plan", "--config", "job.yaml", "--out", "plan.json", "--budget", "20", "--quiet"],
    "validate": ["validate", "job.yaml"],
    "devices": ["devices"],
    "--help": ["--help"],
}
STREAMS = {
    "closed": (">&-", 4, os.strerror(errno.EBADF)),
    "full": (">/dev/full", 4, os.strerror(errno.ENOSPC)),
    "nobody reads": ("| true; exit ${PIPESTATUS[0]}", 141, ""),
    "nothing is open": (">&- 2>&-", 4, ""),
}


def shell(arguments: list[str], redirection: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in bash with its output sent somewhere."""
    words = " ".join([sys.executable, "-m", "hetrl.tools.main", *arguments])
    return subprocess.run(
        ["bash", "-c", f"{words} {redirection}"],
        capture_output=True, text=True, check=False, cwd=folder, timeout=120, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(TWO_NODES)
    return tmp_path


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("command", ["plan", "devices"])
def test_a_lost_output_is_one_line_and_no_lost_plan(command: str, stream: str, folder: Path) -> None:
    redirection, code, reason = STREAMS[stream]
    if stream == "full" and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    ended = shell(COMMANDS[command], redirection, folder)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr == (f"hetrl {command}: the output cannot be written: {reason}\n" if reason else "")
    if command == "plan":
        assert json.loads((folder / "plan.json").read_text())["format"] == "hetrl-plan"
        assert (folder / "plan.timings.json").is_file()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal_without_unicode_shows_ascii(command: str, folder: Path) -> None:
    (folder / "job.yaml").write_text(TWO_NODES.replace("id: slow", "id: größer"))
    ended = shell(COMMANDS[command], "", folder, PYTHONIOENCODING="ascii")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.isascii() and len(ended.stdout) > 300
    if command == "plan":
        assert "+----" in ended.stdout and "###" in ended.stdout


def test_an_error_after_output_keeps_its_own_code(folder: Path) -> None:
    assert shell(["validate", "none.yaml"], ">&-", folder).returncode == 2


def test_every_console_on_stdout_leaves_closed_pipes_to_the_command() -> None:
    """rich's own Console would exit with code 1, as a defect does."""
    made = [
        (file.name, ast.unparse(call))
        for file in sorted(TOOLS.glob("*.py"))
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Console"
    ]
    assert [name for name, text in made if "file=" not in text] == []


@pytest.fixture(params=["missing/plan.json", ".", "folder", "job.yaml/plan.json", "long" * 100])
def unwritable(request: pytest.FixtureRequest, folder: Path) -> str:
    (folder / "folder").mkdir()
    return str(folder / request.param)


CALLS: dict[str, tuple[Callable[[list[str]], int], list[str]]] = {
    "plan": (plan.main, ["--config", "job.yaml", "--quiet", "--out"]),
    "certificate": (plan.main, ["--config", "job.yaml", "--quiet", "--solver", "ilp", "--certificate"]),
    "fit": (fit.main, ["--data", "none", "--out"]),
    "fit of a profile": (fit.main, ["--measurements", "none.jsonl", "--out"]),
    "refit": (refit.main, ["--config", "job.yaml", "--measurements", "none.jsonl", "--out"]),
    "predict": (predict.main, ["--in", "none.csv", "--out"]),
}


@pytest.mark.parametrize("command", CALLS)
def test_an_unwritable_file_is_noticed_before_the_work(
    command: str,
    unwritable: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The inputs that the work would begin with do not exist, or the search must not start: the file is named first."""
    monkeypatch.chdir(folder)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the search has started")

    monkeypatch.setattr(plan, "solve", never)
    main, arguments = CALLS[command]
    before = sorted(folder.rglob("*"))
    assert main([*arguments, unwritable]) == 2
    said = capsys.readouterr().err
    assert f"{unwritable}: cannot be written: " in said and "none" not in said
    assert sorted(folder.rglob("*")) == before


def test_a_profile_needs_a_file_to_append_to(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile.main(["--out", str(folder), "--device", "cpu"]) == 2
    assert f"{folder}: cannot be written: Is a directory" in capsys.readouterr().err


def test_asking_leaves_no_trace(folder: Path) -> None:
    before = (folder / "job.yaml").read_bytes()
    check_writable(folder / "job.yaml", folder / "new.json", None, "/dev/null")
    check_appendable(folder / "job.yaml")
    check_appendable(folder / "new.jsonl")
    assert (folder / "job.yaml").read_bytes() == before
    assert [path.name for path in folder.iterdir()] == ["job.yaml"]
    with pytest.raises(SpecError, match=r"job\.yaml/x: cannot be written"):
        check_appendable(folder / "job.yaml" / "x")


@pytest.mark.parametrize("width", [60, 80, 100, 118, 200])
def test_tables_follow_the_terminal(
    width: int, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert plan.main(["--config", str(folder / "job.yaml"), "--budget", "20", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    tables = [line for line in lines if set("│┃━─") & set(line)]
    assert len(tables) > 10
    assert max(map(len, tables)) <= width
    bars = [line for line in lines if "█" in line]
    assert bars and all("actor" in line or "reference" in line for line in bars), "a bar does not wrap"
    assert not any("…" in line for line in lines)


def test_tables_of_a_file_have_the_usual_width(folder: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    command = [sys.executable, "-m", "hetrl.tools.main", "plan", "--config", "job.yaml", "--budget", "20", "--quiet"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=environment)
    assert max(len(line) for line in ended.stdout.splitlines() if "┃" in line) in range(100, 119)
