"""hetrl doctor: what it says about this environment, about a broken one, and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetrl.tools import doctor, environment

RAISE_NMS = "raise RuntimeError('operator torchvision::nms does not exist')"


def run_python(code: str, *, path: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environ}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)


def test_planning_and_a_solver_work_here() -> None:
    for name in ("numpy", "yaml", "jsonschema", "rich", "pulp"):
        finding = environment.package("planning", name, "")
        assert finding.state == "works"
        assert finding.detail.split()[1][0].isdigit()
    assert environment.solver("CBC", "PULP_CBC_CMD", "").state == "works"


def test_a_missing_solver_is_missing_and_not_broken() -> None:
    finding = environment.solver("SCIP", "SCIP_CMD", "install scip")
    assert (finding.state, finding.fix) == ("missing", "install scip")


def test_a_missing_package_is_missing() -> None:
    finding = environment.package("runtime", "no_such_package", "install it")
    assert (finding.state, finding.detail, finding.fix) == ("missing", "not installed", "install it")


def test_a_torchvision_that_does_not_import_is_found_with_its_fix(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    code = (
        "from hetrl.tools.environment import torchvision; f = torchvision(); print(f.state, f.detail, f.fix, sep='|')"
    )
    child = run_python(code, path=tmp_path)
    state, detail, fix = child.stdout.strip().split("|")
    assert state == "broken"
    assert "operator torchvision::nms does not exist" in detail
    assert "pip uninstall torchvision torchaudio torchcodec" in fix


def test_a_package_broken_by_torchvision_gets_that_fix(tmp_path: Path) -> None:
    (tmp_path / "victim.py").write_text(RAISE_NMS)
    code = "from hetrl.tools.environment import package; print(package('runtime', 'victim', 'reinstall').fix)"
    assert "pip uninstall torchvision" in run_python(code, path=tmp_path).stdout


def test_a_missing_compiler_matters_only_where_something_must_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    needed = environment.compiler(needed=True)
    assert (needed.state, needed.detail) == ("missing", "no no-such-compiler on PATH")
    assert "gcc" in needed.fix
    assert environment.compiler(needed=False).state == "works"


def findings(planning: environment.State) -> list[environment.Finding]:
    return [
        environment.Finding(part="planning", name="numpy", state=planning, detail="numpy 2", fix=""),
        environment.Finding(part="solvers", name="CBC", state="works"),
        environment.Finding(part="solvers", name="Gurobi", state="missing", fix="buy it"),
        environment.Finding(part="runtime", name="torch", state="works"),
        environment.Finding(part="runtime", name="vllm", state="broken", detail="nms", fix="repair it"),
    ]


def test_exit_code_follows_planning_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: findings("works"))
    assert doctor.main([]) == 0
    monkeypatch.setattr(doctor, "examine", lambda: findings("missing"))
    assert doctor.main([]) == 4
    capsys.readouterr()


def test_json_names_parts_and_findings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: findings("works"))
    assert doctor.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["parts"] == {"planning": True, "solvers": True, "runtime": False}
    assert report["findings"][4] == {
        "part": "runtime",
        "name": "vllm",
        "state": "broken",
        "detail": "nms",
        "fix": "repair it",
    }


def test_text_shows_the_fix_below_what_it_repairs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: findings("works"))
    doctor.main([])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "runtime: not available" in lines
    assert lines[lines.index("!! vllm    nms") + 1] == "fix: repair it"
