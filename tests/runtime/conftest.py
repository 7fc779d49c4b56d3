"""A tiny job on two CPU devices, and one session that the tests share: starting engines takes half a minute."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hetrl.measure import MeasurementStore
from hetrl.plan.plan import Group, Plan, Replica, Stage, TaskPlan
from hetrl.runtime.limits import resolve_run
from hetrl.runtime.recording import Prediction
from hetrl.runtime.session import Session
from hetrl.spec.job import Job, RunSettings
from hetrl.spec.load import load_job

DEMO = Path(__file__).parents[2] / "examples" / "demo"
SHARES = (6, 2)


@dataclass(frozen=True)
class Launchable:
    """Everything a session takes."""

    job: Job
    plan: Plan
    run: RunSettings


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "model"
    subprocess.run([sys.executable, str(DEMO / "make_model.py"), str(folder)], check=True, capture_output=True)
    return folder


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


@pytest.fixture(scope="session")
def launchable(model_folder: Path) -> Launchable:
    job = load_job(DEMO / "job.yaml", demo_overrides(model_folder))
    assert job.run is not None
    return Launchable(job, two_device_plan(job, SHARES), resolve_run(job.run, job, DEMO))


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> MeasurementStore:
    return MeasurementStore(tmp_path_factory.mktemp("store") / "measurements.jsonl")


@pytest.fixture(scope="session")
def prediction() -> Prediction:
    shares = dict.fromkeys(("actor_generate", "reference_score", "actor_train"), SHARES)
    return Prediction(
        step_seconds=1.0,
        replica_seconds=dict.fromkeys(shares, (0.25, 0.5)),
        peak_bytes={0: 2.0**30},
        shares=shares,
        max_response_tokens=16,
    )


@pytest.fixture(scope="session")
def session(launchable: Launchable, store: MeasurementStore, prediction: Prediction) -> Iterator[Session]:
    # Ray's workers import hetrl from where this process does, also when it is not installed.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(DEMO.parents[1]), os.environ.get("PYTHONPATH")]))
    with Session.start(launchable.plan, launchable.job, launchable.run, store=store, prediction=prediction) as started:
        yield started
