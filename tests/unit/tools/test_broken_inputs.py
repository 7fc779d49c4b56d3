"""Broken inputs: one clear message each, exit code 2, nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hetrl.tools import launch, plan
from tests.helpers.jobs import TWO_NODES

JOBS = {
    "unknown key": (("solver: hybrid", "solvr: hybrid"), ("optimizer.solvr", "did you mean 'solver'")),
    "wrong type": (("num_prompts: 64", "num_prompts: many"), ("batch.num_prompts", "many")),
    "zero GPUs": (("gpus: 4, type: H100", "gpus: 0, type: H100"), ("cluster_topology.nodes[0].gpus", "0")),
    "unknown model": (
        ("actor_model: Qwen/Qwen2.5-7B-Instruct", "actor_model: Qwen/Qwen2.5-7B-Instrct"),
        ("workflow.actor_model", "Qwen/Qwen2.5-7B-Instruct"),
    ),
    "unknown device": (("type: L40S", "type: L40Z"), ("cluster_topology.nodes[1].type", "L40S")),
    "unknown algorithm": (("algorithm: GRPO", "algorithm: GPRO"), ("workflow.algorithm", "GRPO")),
}


@pytest.mark.parametrize("kind", sorted(JOBS))
def test_broken_jobs(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (old, new), expected = JOBS[kind]
    assert old in TWO_NODES
    (tmp_path / "job.yaml").write_text(TWO_NODES.replace(old, new))
    code = plan.main(["--config", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "plan.json"), "--quiet"])
    said = capsys.readouterr()
    assert code == 2
    assert all(text in said.err for text in expected), said.err
    assert "Traceback" not in said.err and said.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml"]


def test_several_problems_come_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = TWO_NODES.replace("solver: hybrid", "solvr: hybrid").replace("type: L40S", "type: L40Z")
    (tmp_path / "job.yaml").write_text(job)
    assert plan.main(["--config", str(tmp_path / "job.yaml"), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "solvr" in said and "L40Z" in said


def test_missing_job_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["--config", str(tmp_path / "none.yaml"), "--quiet"]) == 2
    assert "none.yaml" in capsys.readouterr().err


@pytest.fixture(scope="module")
def plan_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "job.yaml").write_text(TWO_NODES)
    assert (
        plan.main(
            ["--config", str(folder / "job.yaml"), "--out", str(folder / "plan.json"), "--budget", "50", "--quiet"]
        )
        == 0
    )
    return (folder / "plan.json").read_text()


def other_version(text: str) -> str:
    return json.dumps({**json.loads(text), "version": 99})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON"),
        (other_version, "another schema version"),
        (lambda text: text, "NotSupported"),
    ],
    ids=["truncated", "other version", "not launchable"],
)
def test_broken_plans_are_not_launched(
    change: object, expected: str, plan_text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text(change(plan_text))  # type: ignore[operator]
    code = launch.main(["--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "run")])
    said = capsys.readouterr().err
    assert code == 2
    assert expected in said, said
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json"]
