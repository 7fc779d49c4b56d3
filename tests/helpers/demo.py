"""The demo job of examples/demo, made small, with a plan that uses both devices unevenly."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hetrl.plan.document import PlanDocument, describe_devices, describe_tasks
from hetrl.plan.plan import Group, Plan, Replica, Stage, TaskPlan
from hetrl.spec.job import Job
from hetrl.spec.load import load_job

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo"
SHARES = (6, 2)
MARK = "HETRL_TEST_MARK"


def demo_overrides(model_folder: Path) -> dict[str, object]:
    return {
        "workflow.actor_model": str(model_folder),
        "workflow.reference_model": str(model_folder),
        "batch.num_prompts": sum(SHARES),
        "batch.responses_per_prompt": 4,
        "batch.mean_response_tokens": 16,
        "batch.max_response_tokens": 16,
    }


def two_device_plan(job: Job, shares: tuple[int, int]) -> Plan:
    """Every task on both devices, with the same uneven shares."""

    def task_plan(name: str, kind: str) -> TaskPlan:
        num_layers = job.workflow.task(name).model.num_layers
        return TaskPlan(
            task=name,
            replicas=tuple(
                Replica(stages=(Stage(num_layers=num_layers, devices=(device,)),), num_prompts=share)
                for device, share in enumerate(shares)
            ),
            micro_batch_size=64 if kind == "generate" else 4,
        )

    return Plan(
        groups=(Group(tasks=tuple(task.name for task in job.workflow.tasks), devices=(0, 1)),),
        tasks=tuple(task_plan(task.name, task.kind) for task in job.workflow.tasks),
    )


def write_plan(path: Path, model_folder: Path, extra: dict[str, object] | None = None) -> Path:
    job = load_job(DEMO / "job.yaml", {**demo_overrides(model_folder), **(extra or {})})
    plan = two_device_plan(job, SHARES)
    prediction = {
        "step_seconds": 1.0,
        "tokens_per_second": 1.0,
        "samples_per_second": 1.0,
        "tasks": {task.task: {"replica_seconds": [0.25, 0.5]} for task in plan.tasks},
        "transfers": [{"kind": "weights", "seconds": 0.125}],
        "schedule": {},
        "critical_path": [],
        "memory": {"devices": {}, "hosts": {}},
        "idle_share": {},
    }
    PlanDocument(
        plan=plan,
        config=job.config,
        config_folder=str(DEMO),
        devices=describe_devices(job),
        tasks=describe_tasks(job),
        prediction=prediction,
    ).write(path)
    return path


def launch_environment(mark: str = "") -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Ray's workers import hetrl from where this process does, also when it is not installed.
    found = {**os.environ, "PYTHONPATH": path, MARK: mark, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    found.pop("RAY_ADDRESS", None)
    return found


def launch_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "hetrl.tools.launch", *map(str, arguments)]
