"""What hetrl-launch refuses before it starts anything: exit code 2, one clear message, nothing written."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hetrl.plan.document import read_plan
from hetrl.runtime.placement import node_needs
from hetrl.spec.load import load_job
from hetrl.tools.launch import outcome_line, prediction_of
from tests.helpers.demo import (
    DEMO,
    SHARES,
    demo_overrides,
    launch_command,
    launch_environment,
    two_device_plan,
    write_plan,
)


def refused(tmp_path: Path, plan: Path, *arguments: object) -> str:
    """What the launcher says as it exits with 2, writing nothing."""
    before = sorted(tmp_path.rglob("*"))
    ended = subprocess.run(
        launch_command("--plan", plan, "--out", tmp_path / "run", *arguments),
        env=launch_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert sorted(tmp_path.rglob("*")) == before
    return ended.stderr


@pytest.fixture
def bare_model(tmp_path: Path) -> Path:
    """A folder that passes for a model until it is loaded."""
    folder = tmp_path / "model"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 320,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_missing_prompts_and_reward_are_named(tmp_path: Path, bare_model: Path) -> None:
    plan = write_plan(tmp_path / "plan.json", bare_model, {"run": {"num_steps": 1}})
    said = refused(tmp_path, plan)
    assert "run.prompts: missing" in said
    assert "run.reward: missing" in said
    assert "run.actor_path" not in said


def test_a_reward_that_only_the_plan_names_is_not_run(tmp_path: Path, bare_model: Path) -> None:
    said = refused(tmp_path, write_plan(tmp_path / "plan.json", bare_model))
    assert "--trust-plan" in said


def test_a_device_this_machine_lacks_is_named(tmp_path: Path, bare_model: Path) -> None:
    node = {"cluster_topology.nodes[1].type": "H100", "cluster_topology.nodes[1].interconnect": "NVLink-900G"}
    plan = write_plan(tmp_path / "plan.json", bare_model, node)
    said = refused(tmp_path, plan, "--trust-plan")
    assert "Ray has no device of type H100" in said
    assert "what Ray offers: 1 cpu-fast" in said


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda plan: plan | {"version": 99}, "version 1"),
        (lambda plan: plan | {"surprise": 1}, "surprise"),
        (lambda plan: {key: plan[key] for key in plan if key != "groups"}, "groups"),
    ],
    ids=["other version", "unknown key", "missing key"],
)
def test_a_plan_of_another_form_is_refused(
    tmp_path: Path, bare_model: Path, change: Callable[[dict[str, object]], dict[str, object]], named: str
) -> None:
    plan = write_plan(tmp_path / "plan.json", bare_model)
    plan.write_text(json.dumps(change(json.loads(plan.read_text()))))
    assert named in refused(tmp_path, plan, "--trust-plan")


def test_a_truncated_plan_is_refused(tmp_path: Path, bare_model: Path) -> None:
    plan = write_plan(tmp_path / "plan.json", bare_model)
    plan.write_text(plan.read_text()[:-200])
    assert "not valid JSON" in refused(tmp_path, plan, "--trust-plan")


def test_an_old_run_is_not_overwritten(tmp_path: Path, bare_model: Path) -> None:
    plan = write_plan(tmp_path / "plan.json", bare_model)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    assert "--resume" in refused(tmp_path, plan, "--trust-plan")


@pytest.mark.parametrize(
    "arguments", [("--resume",), ("--steps", 0), ("--throttle", "cpu-slow"), ("--reward", "nowhere:f")]
)
def test_wrong_arguments_are_refused(tmp_path: Path, bare_model: Path, arguments: tuple[object, ...]) -> None:
    plan = write_plan(tmp_path / "plan.json", bare_model)
    assert str(arguments[0]).strip("-").replace("reward", "run.reward") in refused(
        tmp_path, plan, "--trust-plan", *arguments
    )


def test_what_the_runtime_does_not_carry_out_is_named(tmp_path: Path, bare_model: Path) -> None:
    plan = write_plan(tmp_path / "plan.json", bare_model)
    document = json.loads(plan.read_text())
    for task in document["tasks"]:
        if task["kind"] == "train":
            task["recompute"] = True
            task["sharding"] = "zero1"
    plan.write_text(json.dumps(document))
    said = refused(tmp_path, plan, "--trust-plan")
    assert "NotSupported: activation recomputation" in said
    assert "NotSupported: optimizer-state sharding (ZeRO-1)" in said


def test_needs_follow_the_plan(bare_model: Path) -> None:
    job = load_job(DEMO / "job.yaml", demo_overrides(bare_model))
    needs = node_needs(two_device_plan(job, SHARES), job.topology)
    assert [(need.id, need.device_type, need.devices) for need in needs] == [
        ("fast", "cpu-fast", (0,)),
        ("slow", "cpu-slow", (1,)),
    ]


def test_predictions_are_read_from_the_plan(tmp_path: Path, bare_model: Path) -> None:
    document = read_plan(write_plan(tmp_path / "plan.json", bare_model))
    predicted = prediction_of(document, load_job(DEMO / "job.yaml", demo_overrides(bare_model)))
    assert predicted.step_seconds == 1.0
    assert predicted.weight_sync_seconds == 0.125
    assert predicted.replica_seconds["actor_train"] == (0.25, 0.5)
    assert predicted.shares["actor_train"] == SHARES
    assert predicted.max_response_tokens == 16


def test_a_run_ends_with_its_steps_beside_the_plans() -> None:
    assert outcome_line([1.66, 1.37, 1.36], 2.631) == "median of 3 steps: 1.37 s; the plan predicts 2.63 s"
    assert outcome_line([1.5], None) == "median of 1 steps: 1.5 s"
