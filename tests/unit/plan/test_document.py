"""plan.json: round trip, schema, and broken files that get one clear message each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hetrl.errors import SpecError
from hetrl.plan.document import read_plan
from hetrl.tools.plan import main
from tests.helpers.jobs import TWO_NODES


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "job.yaml").write_text(TWO_NODES)
    assert (
        main(["--config", str(folder / "job.yaml"), "--out", str(folder / "plan.json"), "--budget", "50", "--quiet"])
        == 0
    )
    return folder / "plan.json"


def test_round_trip(plan_file: Path, tmp_path: Path) -> None:
    document = read_plan(plan_file)
    document.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == plan_file.read_bytes()


def test_document_says_what_is_needed(plan_file: Path) -> None:
    document = json.loads(plan_file.read_text())
    assert document["version"] == 1
    assert {task["task"] for task in document["tasks"]} == {"actor_generate", "reference_score", "actor_train"}
    used = {
        device
        for task in document["tasks"]
        for each in task["replicas"]
        for stage in each["stages"]
        for device in stage["devices"]
    }
    assert used <= {device["id"] for device in document["devices"]}
    prediction = document["prediction"]
    assert prediction["step_seconds"] > 0 and prediction["critical_path"]
    for device, memory in prediction["memory"]["devices"].items():
        for interval, terms in memory["intervals"].items():
            assert sum(terms.values()) <= memory["limit_bytes"], (device, interval)
    assert set(document["provenance"].values()) <= {"measured", "fitted", "datasheet"}
    assert document["assumed"]["batch.num_mini_batches"] == "4"
    assert "time" not in document  # no clock times


def change(plan_file: Path, target: Path, **changes: object) -> Path:
    document = json.loads(plan_file.read_text())
    document.update(changes)
    target.write_text(json.dumps(document))
    return target


def message(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        read_plan(path)
    return str(caught.value)


def test_other_schema_version(plan_file: Path, tmp_path: Path) -> None:
    text = message(change(plan_file, tmp_path / "plan.json", version=2))
    assert "another schema version" in text and "version 1" in text


def test_truncated_json(plan_file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "plan.json"
    broken.write_text(plan_file.read_text()[:500])
    assert "not valid JSON" in message(broken)


def test_unknown_device_and_wrong_type(plan_file: Path, tmp_path: Path) -> None:
    groups = json.loads(plan_file.read_text())["groups"]
    groups[0]["devices"].append(99)
    assert "unknown device id" in message(change(plan_file, tmp_path / "a.json", groups=groups))
    assert "groups" in message(change(plan_file, tmp_path / "b.json", groups="all"))


def test_not_a_plan(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[1, 2]")
    assert "not a hetrl plan" in message(tmp_path / "list.json")
    (tmp_path / "other.json").write_text('{"format": "something"}')
    assert "not a hetrl plan" in message(tmp_path / "other.json")
    assert "cannot be read" in message(tmp_path / "missing.json")


def test_two_tasklets_on_one_device(plan_file: Path, tmp_path: Path) -> None:
    document = json.loads(plan_file.read_text())
    stages = document["tasks"][0]["replicas"][0]["stages"]
    stages[0]["devices"] = [stages[0]["devices"][0]] * 2
    target = tmp_path / "plan.json"
    target.write_text(json.dumps(document))
    assert "two tasklets of one task on the same device" in message(target)


def test_infeasible_job_exits_3_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = TWO_NODES.replace("gpus: 4, type: H100", "gpus: 1, type: L4").replace(
        "gpus: 4, type: L40S", "gpus: 1, type: L4"
    )
    job = job.replace("Qwen/Qwen2.5-7B-Instruct", "meta-llama/Meta-Llama-3-70B-Instruct").replace(
        "NVLink-900G", "PCIe-Gen4"
    )
    (tmp_path / "job.yaml").write_text(job)
    code = main(["--config", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "plan.json"), "--quiet"])
    said = capsys.readouterr().err
    assert code == 3
    assert not (tmp_path / "plan.json").exists()
    assert "actor_train" in said and "GiB" in said and "help: " in said
