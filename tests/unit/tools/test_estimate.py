"""`hetrl estimate`: a written plan costs what the evaluator says, and mistakes are named."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from hetrl.cost.model import CostModel, PhaseCalibration
from hetrl.tools import estimate
from hetrl.tools.main import main

WRITTEN = """
groups:
  - tasks: [actor_generate, reward_score, reference_score, actor_train]
    nodes: {node-p5-01: 8, node-p4d-01: 8}
  - tasks: [critic_score, critic_train]
    nodes: {node-g6e-01: 4}
"""


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["estimate", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_a_written_plan_and_the_same_plan_json_cost_the_same(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = repository / "configs" / "rlhf_70b.yaml"
    plan = tmp_path / "plan.json"
    assert main(["plan", "--config", str(config), "--out", str(plan), "--budget", "60", "--quiet"]) == 0
    planned = json.loads(plan.read_text())["prediction"]["step_seconds"]
    assert json.loads(call(capsys, plan, "--json")[1])["step_seconds"] == planned
    assert json.loads(call(capsys, plan, "--config", config, "--json")[1])["step_seconds"] == planned
    (tmp_path / "written.yaml").write_text(WRITTEN)
    code, said = call(capsys, tmp_path / "written.yaml", "--config", config)
    assert code == 0
    assert "group 1: 4 devices" in said


def test_another_cost_model_than_the_plans_is_said(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, slow = tmp_path / "plan.json", tmp_path / "slow.json"
    calibrations = {("H100", "train"): PhaseCalibration(scale=2.0, provenance="measured", num_measurements=1)}
    replace(CostModel.builtin(), calibrations=calibrations).save(slow)
    config = repository / "configs" / "rlhf_70b.yaml"
    assert main(["plan", "--config", str(config), "--out", str(plan), "--budget", "60", "--quiet"]) == 0
    assert "note:" not in call(capsys, plan)[1]
    said = call(capsys, plan, "--models", slow)[1]
    assert "with the cost model built-in; here it is" in said
    assert "slow.json (--models)" in said


def test_a_written_plan_needs_its_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "written.yaml").write_text(WRITTEN)
    assert call(capsys, tmp_path / "written.yaml") == (
        2,
        "hetrl estimate: --config: a YAML plan needs the job file it is for\n",
    )


def test_misspelt_tasks_and_too_many_devices_are_named_together(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = WRITTEN.replace("critic_train", "critic_trian").replace("node-g6e-01: 4", "node-g6e-01: 9")
    (tmp_path / "written.yaml").write_text(broken)
    code, said = call(capsys, tmp_path / "written.yaml", "--config", repository / "configs" / "rlhf_70b.yaml")
    assert code == 2
    assert "groups[1].tasks: unknown task (found: 'critic_trian'); valid: did you mean 'critic_train'" in said
    assert "groups[1].nodes.node-g6e-01: more devices than are left on the node (found: 9); valid: at most 4" in said


def test_scenarios_say_what_was_drawn() -> None:
    parser = argparse.ArgumentParser()
    estimate.add_arguments(parser)
    figures = {"p10_seconds": 1.5, "p50_seconds": 2.0, "p90_seconds": 2.5}
    plain = parser.parse_args(["plan.json", "--scenarios", "1000"])
    wanted = "1,000 scenarios with drawn response lengths: p10 1.5 s, median 2 s, p90 2.5 s"
    assert estimate.scenarios_line(plain, figures) == wanted
    spread = parser.parse_args(["plan.json", "--scenarios", "10", "--device-spread", "0.05", "--link-spread", "0.2"])
    said = estimate.scenarios_line(spread, figures)
    assert "lengths, slow-downs of devices (spread 0.05), slow-downs of links (spread 0.2): " in said
