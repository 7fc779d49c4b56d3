"""hetrl validate, memory, devices and models: what they print, and their exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hetrl.cost.residency import plan_memory
from hetrl.plan.plan import Group, Plan, Replica, Residency, Stage, TaskPlan
from hetrl.plan.rules import plan_problems
from hetrl.spec.device_names import catalogue_devices
from hetrl.spec.job import Job
from hetrl.spec.load import load_job
from hetrl.tools import devices, memory, models, validate
from hetrl.tools import plan as plan_command
from hetrl.tools.memory_text import devices_needed, memory_lines, memory_problems, smallest_change
from hetrl.workload.outlook import fleet_outlook

GUIDE = Path(__file__).parents[3] / "configs" / "rlhf_70b.yaml"
SMALL = """
workflow: {algorithm: GRPO, actor_model: Qwen2.5-7B, reference_model: Qwen2.5-7B}
cluster_topology: {nodes: [{id: a, gpus: 4, type: H100, interconnect: NVLink-900G}]}
batch: {num_prompts: 16}
optimizer: {memory_safety_margin: 0.0}
"""


def replicas(count: int, tensor: int, prompts: int, first: int = 0) -> tuple[Replica, ...]:
    """Equal replicas of Qwen2.5-7B side by side."""
    return tuple(
        Replica(
            stages=(Stage(num_layers=28, devices=tuple(range(first + i * tensor, first + (i + 1) * tensor))),),
            num_prompts=prompts // count,
        )
        for i in range(count)
    )


def small_plan(*, train: TaskPlan | None = None) -> tuple[Job, Plan]:
    """Everything colocated on four devices."""
    job = load_job(SMALL)
    idle = Residency(weights_when_idle="dropped")
    tasks = (
        TaskPlan(task="actor_generate", replicas=replicas(1, 4, 16), micro_batch_size=16, residency=idle),
        TaskPlan(task="reference_score", replicas=replicas(1, 4, 16), micro_batch_size=1),
        train or TaskPlan(task="actor_train", replicas=replicas(1, 4, 16), micro_batch_size=1, recompute=True),
    )
    return job, Plan(groups=(Group(tasks=tuple(task.task for task in tasks), devices=(0, 1, 2, 3)),), tasks=tasks)


def test_guide_file_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.main([str(GUIDE)]) == 0
    said = capsys.readouterr().out
    assert "A100-40GB" in said and said.strip().endswith("job: valid")
    assert validate.main([str(GUIDE), "--strict"]) == 2


def test_a_fleet_is_told_by_types_whatever_its_nodes() -> None:
    nodes = "[{id: a, gpus: 8, type: H100, count: 30}, {id: b, gpus: 4, type: L4}, {id: c, gpus: 2, type: H100}]"
    text = f"workflow: {{algorithm: GRPO, actor_model: Qwen2.5-7B}}\ncluster_topology: {{nodes: {nodes}}}\n"
    assert validate.fleet_text(load_job(text)) == "246 devices (242 H100 in 31 nodes, 4 L4 in 1 node)"


def test_validate_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.main([str(GUIDE), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["valid"] and report["problems"] == [] and report["num_devices"] == 20
    assert report["tensor_degrees"]["actor"] == [1, 2, 4, 8]
    assert report["assumed"]["batch.num_prompts"] == "256"


def test_broken_input_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("workflow: {algorithm: GRPO, actor_model: Qwen2.5-7B}\ncluster_topology: {nodes: []}\n")
    assert validate.main([str(file), "--json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["path"] == "cluster_topology.nodes"


def test_a_model_larger_than_the_fleet_cannot_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "workflow: {algorithm: GRPO, actor_model: Llama-3.1-405B}\n"
        "cluster_topology: {nodes: [{id: a, gpus: 8, type: L4}]}\n"
    )
    assert validate.main([str(file)]) == 3
    said = capsys.readouterr().out
    assert "DEVICE_MEMORY" in said and "more L4" in said and "or precision.lora_rank" not in said


SHORT = """
workflow: {algorithm: GRPO, actor_model: MODEL}
cluster_topology: {nodes: [{id: a, gpus: 4, type: L4, host_ram: 16GB}]}
optimizer: {memory_safety_margin: 0.3, budget: 20}
"""


@pytest.mark.parametrize("model", ["Qwen2.5-7B", "Llama-2-13B", "Llama-3-70B", "Llama-3.1-405B"])
def test_only_changes_that_can_suffice_are_named(
    model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Weights that exceed all devices are not helped by LoRA, nor a least that they cannot hold by a smaller margin."""
    job = load_job(SHORT.replace("MODEL", model))
    file = tmp_path / "job.yaml"
    file.write_text(SHORT.replace("MODEL", model))
    assert memory.main([str(file)]) == 3
    said = capsys.readouterr().err
    lora = load_job(SHORT.replace("MODEL", model), {"precision.lora_rank": 8})
    assert "LoRA" not in said or fleet_outlook(lora) == []
    for problem in fleet_outlook(job):
        helped = {each.message.partition(" ")[0] for each in fleet_outlook(lora)}
        assert ("precision.lora_rank" in problem.valid) is (problem.message.partition(" ")[0] not in helped)
    bare = load_job(SHORT.replace("MODEL", model), {"optimizer.memory_safety_margin": 0.0})
    assert "memory_safety_margin" not in said or fleet_outlook(bare) == []


def test_outlook_of_the_guide_is_open_on_40_gb_cards_too() -> None:
    assert fleet_outlook(load_job(GUIDE, {"cluster_topology.nodes[1].type": "A100-40GB"})) == []


def test_plan_rules_name_every_violation() -> None:
    job, plan = small_plan()
    assert plan_problems(job, plan) == []
    broken = TaskPlan(
        task="actor_train",
        replicas=(Replica(stages=(Stage(num_layers=20, devices=(0, 1, 2)),), num_prompts=3),),
        micro_batch_size=1,
    )
    rules = {problem.rule for problem in plan_problems(*small_plan(train=broken))}
    assert rules == {"PP_SPLIT", "TP_HEADS", "TP_KV_HEADS", "TP_INTERMEDIATE", "BATCH_SPLIT"}


def test_a_plan_over_memory_names_the_change_that_fits() -> None:
    # 7B on each of four devices: 16 bytes x 7.6e9 = 113 GiB of training state against 79.65 GiB
    train = TaskPlan(task="actor_train", replicas=replicas(4, 1, 16), micro_batch_size=1, recompute=True)
    job, plan = small_plan(train=train)
    problems = memory_problems(job, plan_memory(job, plan))
    assert {problem.rule for problem in problems} == {"DEVICE_MEMORY", "KV_ROOM"}
    assert any("actor_train needs" in problem.message for problem in problems)
    assert smallest_change(job, plan) == "actor_train: full sharding over the replicas"
    fixed = Plan(groups=plan.groups, tasks=(*plan.tasks[:2], replace(train, sharding="fsdp")))
    assert memory_problems(job, plan_memory(job, fixed)) == []
    # 113 GiB of state and 7.5 GiB beside it on 79.65 GiB each: about seven cards instead of four
    (needed,) = devices_needed(job, plan)
    assert "about 7 H100 instead of 4" in needed
    assert any("does not fit" in line for line in memory_lines(job, plan_memory(job, plan)))


def test_host_ram_is_a_limit_like_device_memory() -> None:
    # optimizer states of 7.6e9 parameters at 12 bytes are 91e9 bytes; the host has 64e9, which are 59.6 GiB
    job = load_job(SMALL.replace("interconnect: NVLink-900G", "host_ram: 64GB"))
    train = TaskPlan(
        task="actor_train",
        replicas=replicas(1, 4, 16),
        micro_batch_size=1,
        recompute=True,
        residency=Residency(optimizer_states="host"),
    )
    _, plan = small_plan(train=train)
    (problem,) = [each for each in memory_problems(job, plan_memory(job, plan)) if each.rule == "HOST_RAM"]
    assert "59.60 GiB there" in problem.found


def test_memory_of_a_job_that_cannot_fit_exits_with_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(SMALL.replace("gpus: 4", "gpus: 1").replace("interconnect: NVLink-900G", "host_ram: 8GB"))
    assert memory.main([str(file), "--budget", "20"]) == 3
    assert "no plan fits" in capsys.readouterr().err


def test_memory_of_a_job_is_that_of_the_plan_that_the_planner_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(SMALL)
    assert plan_command.main(["--config", str(job), "--out", str(tmp_path / "plan.json"), "--quiet"]) == 0
    capsys.readouterr()
    for file in (job, tmp_path / "plan.json"):
        assert memory.main([str(file)]) == 0
    said = capsys.readouterr().out
    assert said[: len(said) // 2] == said[len(said) // 2 :]
    assert said.endswith("fits: every device, host and KV pool\n")


@pytest.mark.parametrize("limit", ["--budget=0", "--budget=-4", "--seconds=-1", "--seconds=nan"])
def test_limits_of_the_search_are_checked(limit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(SMALL)
    assert memory.main([str(job), limit]) == 2
    assert "optimizer." in capsys.readouterr().err


def test_devices_are_named_by_runs() -> None:
    job, colocated = small_plan()
    use = plan_memory(job, colocated)
    assert any(line.startswith("0-3 ") for line in memory_lines(job, use))
    other = dict(use.devices[1]["actor_train"], process=7.0)
    unlike = {**use.devices, 1: {**use.devices[1], "actor_train": other}}
    assert any(line.startswith("0,2,3 ") for line in memory_lines(job, replace(use, devices=unlike)))


def test_devices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert devices.main([]) == 0
    assert "A100-40GB" in capsys.readouterr().out
    assert devices.main(["NVIDIA A100-SXM4-40GB", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["memory_bytes"]) == ("A100-40GB", 40960 * 2**20)
    assert devices.main(["--instances"]) == 0
    assert "p5.48xlarge" in capsys.readouterr().out
    (tmp_path / "list.txt").write_text("GPU 0: NVIDIA L4 (UUID: GPU-1)\n")
    assert devices.main(["--list", str(tmp_path / "list.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "L4"
    assert devices.main(["H1000"]) == 2


@pytest.mark.parametrize("name", list(catalogue_devices()))
def test_every_device_is_described_with_its_link(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert devices.main([name, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    devices.print_one(catalogue_devices()[name])
    said = capsys.readouterr().out
    rate = row["link_bytes_per_second"]
    assert f"link             {row['link'] if rate is None else f'{rate / 1e9:g} GB/s in one direction'}" in said


@pytest.mark.parametrize("key", ["gap: 0.1", "mip: highs"])
def test_keys_of_the_exact_solver_are_not_ignored_in_silence(key: str) -> None:
    job = load_job(SMALL.replace("memory_safety_margin: 0.0", key))
    assert any(f"optimizer.{key.partition(':')[0]}: only solver ilp" in line for line in job.warnings)
    assert load_job(SMALL.replace("memory_safety_margin: 0.0", f"solver: ilp, {key}")).warnings == ()


def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main([]) == 0
    assert "8,030,261,248" in capsys.readouterr().out
    assert models.main(["Llama-3-8B", "--scalar-head", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_parameters"] == 7504928768
    assert models.main(["Llama-9-8B"]) == 2
