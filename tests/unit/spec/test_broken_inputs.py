"""Broken job files: each gives one clear message that names the place, and nothing else happens."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hetrl.errors import SpecError
from hetrl.spec.load import load_job

WORKFLOW = "workflow: {algorithm: GRPO, actor_model: Qwen2.5-7B}"
FLEET = "cluster_topology: {nodes: [{id: a, gpus: 8, type: H100}]}"

BROKEN = yaml.safe_load((Path(__file__).parent / "broken_inputs.yaml").read_text())


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken["what"])
def test_one_clear_message(broken: dict[str, str]) -> None:
    text = broken["text"].replace("$WORKFLOW", WORKFLOW).replace("$FLEET", FLEET)
    with pytest.raises(SpecError) as caught:
        load_job(text)
    assert len(caught.value.problems) == 1, [str(problem) for problem in caught.value.problems]
    assert caught.value.problems[0].path == broken["path"]
    assert broken["says"] in str(caught.value.problems[0])


def test_there_are_many_kinds() -> None:
    assert len(BROKEN) >= 40


def test_every_problem_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        load_job(
            "workflow: {algorithm: PPO, actor_model: nope}\n"
            "cluster_topology: {nodes: [{id: a, gpus: -1, type: H1}]}\n"
            "optimizer: {solver: x, seed: -1}\n"
        )
    paths = {problem.path for problem in caught.value.problems}
    assert {"workflow.actor_model", "cluster_topology.nodes[0].gpus", "optimizer.solver", "optimizer.seed"} <= paths


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(SpecError, match=r"no such job file|a folder, not a job file"):
            load_job(path)


def test_binary_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="UTF-8"):
        load_job(file)


def test_huge_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("#" * (5 * 1024**2))
    with pytest.raises(SpecError, match="too large"):
        load_job(file)


def test_unsupported_architecture_is_named() -> None:
    with pytest.raises(SpecError, match="linear-attention layers"):
        load_job(f"workflow: {{algorithm: GRPO, actor_model: {{config: {{model_type: qwen3_next}}}}}}\n{FLEET}")


def test_hub_is_not_asked_unless_allowed() -> None:
    with pytest.raises(SpecError, match="allow_hub"):
        load_job(f"workflow: {{algorithm: GRPO, actor_model: someone/some-model}}\n{FLEET}")
