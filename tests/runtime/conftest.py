"""A tiny job on two CPU devices, and one session that the tests share: starting engines takes half a minute."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hetrl.measure import MeasurementStore
from hetrl.plan.plan import Plan
from hetrl.runtime.limits import resolve_run
from hetrl.runtime.recording import Prediction
from hetrl.runtime.session import Session
from hetrl.spec.job import Job, RunSettings
from hetrl.spec.load import load_job
from tests.helpers.demo import DEMO, SHARES, demo_overrides, launch_environment, two_device_plan
from tests.helpers.processes import marked


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
    os.environ["PYTHONPATH"] = launch_environment()["PYTHONPATH"]
    with Session.start(launchable.plan, launchable.job, launchable.run, store=store, prediction=prediction) as started:
        yield started


@pytest.fixture
def mark() -> Iterator[str]:
    """Mark for `launch_environment`; whoever still carries it at the end is killed."""
    chosen = uuid.uuid4().hex
    yield chosen
    for pid in marked(chosen):
        os.kill(pid, signal.SIGKILL)
