"""The contract of every command: messages on stderr, exit codes, no traceback for a user's mistake."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys

import pytest

from hetrl.errors import InfeasibleError, Problem, RunError, SpecError
from hetrl.tools.cli import run_command
from hetrl.tools.main import COMMANDS, main


def add_number(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--number", type=int, default=0)


def run_raising(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    def run(args: argparse.Namespace) -> int:
        raise error

    code = run_command(add_number, run, [], prog="hetrl test", description=None)
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpecError(Problem(path="a.b", message="is wrong")), 2),
        (InfeasibleError("memory binds"), 3),
        (RunError("a worker died"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_expected_errors_give_a_message_and_their_code(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found, message = run_raising(error, capsys)
    assert found == code
    assert message.startswith("hetrl test: ")
    assert str(error) in message
    assert "Traceback" not in message


def test_every_problem_is_shown_on_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = SpecError([Problem(path="a", message="is wrong"), Problem(path="b", message="is wrong too")])
    _, message = run_raising(error, capsys)
    assert message.splitlines() == ["hetrl test: error:", "  a: is wrong", "  b: is wrong too"]


def test_a_defect_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code, message = run_raising(ZeroDivisionError("oops"), capsys)
    assert code == 1
    assert "Traceback" in message
    assert "ZeroDivisionError: oops" in message
    assert "defect of hetrl" in message


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, message = run_raising(ModuleNotFoundError("No module named 'ray.util'", name="ray.util"), capsys)
    assert code == 4
    assert "pip install 'hetrl[ray]'" in message
    assert "Traceback" not in message


def test_wrong_arguments_are_input_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(add_number, lambda args: 0, ["--number", "x"], prog="hetrl test", description=None) == 2
    assert "invalid int value: 'x'" in capsys.readouterr().err


def test_arguments_reach_the_command() -> None:
    number = ["--number", "7"]
    assert run_command(add_number, lambda args: int(args.number), number, prog="hetrl test", description=None) == 7


def test_a_closed_pipe_is_no_error() -> None:
    code = (
        "import sys; from hetrl.tools.cli import guarded\n"
        "def say():\n"
        "    while True: print('x' * 1000)\n"
        "sys.exit(guarded(say, prog='hetrl test'))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    os.read(child.stdout.fileno(), 10)
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait() == 141
    child.stderr.close()


def test_root_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


def test_root_without_a_command_is_an_input_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: hetrl COMMAND" in capsys.readouterr().err


def test_unknown_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paln"]) == 2
    assert capsys.readouterr().err == "hetrl: no command 'paln'; did you mean 'plan'?\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: hetrl {name} ")
    module = importlib.import_module(COMMANDS[name][0])
    assert module.main(["--help"]) == 0
