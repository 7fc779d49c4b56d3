"""The contract of every command: messages on stderr, exit codes, no traceback for a user's mistake."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetrl.errors import InfeasibleError, Problem, RunError, SpecError
from hetrl.tools.cli import run_command
from hetrl.tools.main import COMMANDS, main
from tests.helpers.jobs import TWO_NODES


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


@pytest.mark.parametrize("where", ["raise KeyboardInterrupt", "exec('raise KeyboardInterrupt')"])
def test_ctrl_c_is_an_exit_code_and_no_signal_wherever_it_hits(where: str, tmp_path: Path) -> None:
    """Also inside ``exec`` of a string, as in dataclasses that are being made: ``python -m`` would end by SIGINT."""
    code = f"import sys\nfrom hetrl.tools.cli import guarded\ndef run():\n    {where}\nsys.exit(guarded(run, prog='x'))"
    (tmp_path / "interrupted.py").write_text(code)
    command = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "x: interrupted\n")


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


def test_a_model_is_described_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "Qwen/Qwen2.5-0.5B", "--json"]) == 0
    keys = json.loads(capsys.readouterr().out)
    assert main(["models", "Qwen/Qwen2.5-0.5B"]) == 0
    shown = capsys.readouterr().out
    assert [key for key in keys if "_" in key and key in shown] == []
    assert "KV cache per token in bf16       12,288 bytes" in shown
    assert f"{keys['forward_flops_per_token_at_1024'] / 1e9:.4g} GFLOP per token" in shown


@pytest.mark.parametrize("price", ["1.0e+300", "1.0e-300", "1.0e+12"])
def test_an_absurd_price_is_said_in_a_line(price: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text(TWO_NODES.replace("type: H100,", f"type: H100, usd_per_hour: {price},"))
    assert main(["validate", str(tmp_path / "job.yaml")]) == 2
    said = capsys.readouterr().err
    assert "is not a plausible price" in said
    assert max(map(len, said.splitlines())) < 250


def test_warnings_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text(TWO_NODES.replace("type: H100, interconnect: NVLink-900G", "type: A100"))
    assert main(["plan", "--config", str(tmp_path / "job.yaml"), "--budget", "20", "--quiet"]) == 0
    assert "A100" in (line := capsys.readouterr().out.splitlines()[0]) and line.startswith("warning: ")
