"""An installation without extras: every command answers --help, and a call either works or names the extra it needs."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hetrl.tools.cli import _EXTRA_OF_PACKAGE
from hetrl.tools.main import COMMANDS
from tests.helpers.demo import write_plan
from tests.helpers.jobs import TWO_NODES

ROOT = Path(__file__).parents[3]
MODULES = {"scikit-learn": ("sklearn", "scipy", "joblib"), "aiconfigurator-core": ("aiconfigurator_core",)}
"""Modules of a package that is not called like its module; with what comes along and is imported by us."""
NOT_LIBRARIES = ("mkdocs",)

CALLS = {
    "plan": ["plan", "--config", "job.yaml", "--out", "plan.json", "--budget", "20", "--quiet"],
    "plan on Ray": ["plan", "--config", "job.yaml", "--ray", "--quiet"],
    "launch": ["launch", "--plan", "run.json", "--model", "model", "--trust-plan"],
    "profile": ["profile", "--device", "cpu", "--out", "new.jsonl"],
    "profile on Ray": ["profile", "--ray", "--out", "new.jsonl"],
    "fit": ["fit", "--measurements", "m.jsonl", "--out", "model.json"],
    "fit of tables": ["fit", "--data", "gemm.csv", "--out", "models.zip"],
    "fit of a package": ["fit", "--aiconfigurator", "--out", "models.zip"],
    "predict": ["predict", "--in", "gemm.csv", "--out", "out.csv"],
    "refit": ["refit", "--config", "job.yaml", "--measurements", "m.jsonl", "--out", "model.json"],
    "validate": ["validate", "plan.json"],
    "memory": ["memory", "plan.json"],
    "devices": ["devices"],
    "models": ["models"],
    "estimate": ["estimate", "plan.json"],
    "scenarios": ["estimate", "plan.json", "--scenarios", "5"],
    "certify": ["certify", "plan.json"],
    "explain": ["explain", "plan.json", "--quick"],
    "doctor": ["doctor"],
}
NEEDS = {
    "plan on Ray": "ray", "profile": "profile", "profile on Ray": "ray", "fit": "profile",
    "fit of tables": "profile", "fit of a package": "profile", "refit": "profile", "scenarios": "sweeps",
    "launch": "ray",
}  # fmt: skip
"""Call -> the extra that it must name."""

MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
    "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip

CHILD = """
import contextlib, io, json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None  # what the import system takes for a module that is not there
from hetrl.tools.main import main
for arguments in json.loads(sys.argv[2]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def modules_of_extras() -> list[str]:
    """Names of the modules that only extras bring."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = {
        requirement.partition(">")[0].partition("[")[0]
        for extra, requirements in extras.items()
        if extra not in ("dev", "docs")
        for requirement in requirements
    }
    return sorted(
        module for package in packages - {"hetrl"} for module in MODULES.get(package, (package.replace("-", "_"),))
    )


def call(commands: list[list[str]], folder: Path) -> list[tuple[int, str, str]]:
    """Run commands, one after the other, where no extra is installed."""
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(modules_of_extras()), json.dumps(commands)],
        capture_output=True, text=True, check=False, cwd=folder, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return [tuple(json.loads(line)) for line in ended.stdout.splitlines()]


def test_every_module_of_an_extra_is_known() -> None:
    assert set(modules_of_extras()) <= set(_EXTRA_OF_PACKAGE)


def test_help_needs_no_extra(tmp_path: Path) -> None:
    for name, (code, out, err) in zip(COMMANDS, call([[name, "--help"] for name in COMMANDS], tmp_path), strict=True):
        assert (code, err) == (0, ""), f"{name}: {err}"
        assert out.startswith(f"usage: hetrl {name} ")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    folder = tmp_path_factory.mktemp("plain")
    (folder / "job.yaml").write_text(TWO_NODES)
    shapes = "\n".join(f"H100-SXM,bf16,cublas,{n},4096,4096,{n * 0.1}" for n in (64, 128, 256, 512, 1024, 2048))
    (folder / "gemm.csv").write_text(f"gpu,dtype,impl,m,n,k,time_us\n{shapes}\n")
    (folder / "m.jsonl").write_text("")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(MODEL))
    write_plan(folder / "run.json", folder / "model")
    return dict(zip(CALLS, call(list(CALLS.values()), folder), strict=True))


def test_every_command_is_called() -> None:
    assert {arguments[0] for arguments in CALLS.values()} == set(COMMANDS)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_works_or_names_the_extra(name: str, answers: dict[str, tuple[int, str, str]]) -> None:
    code, _, err = answers[name]
    assert "Traceback" not in err and "defect" not in err, err
    assert code in (0, 2, 4), err
    if name in NEEDS:
        assert f"hetrl[{NEEDS[name]}]" in err, (code, err)
    else:
        assert "pip install" not in err, err
