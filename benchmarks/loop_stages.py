"""The stages of the loop up to a running session, each through the command a user would type."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from hetrl.measure import MeasurementStore
from hetrl.plan.document import PlanDocument, read_plan
from hetrl.runtime.limits import resolve_run
from hetrl.runtime.session import Session
from hetrl.spec.job import Job
from hetrl.spec.load import load_job
from hetrl.tools.launch import prediction_of

DEMO = Path(__file__).resolve().parents[1] / "examples" / "demo"
KINDS = ("cpu-fast", "cpu-slow")
DUTY = {"cpu-slow": 0.5}
"""Fraction of its core that a device type keeps. Known to the throttle alone."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Files of one loop."""

    folder: Path

    @property
    def job(self) -> Path:
        """Job file."""
        return self.folder / "job.yaml"

    @property
    def model(self) -> Path:
        """Folder of the small Llama."""
        return self.folder / "model"

    @property
    def profiles(self) -> tuple[Path, ...]:
        """Measurements of the two devices."""
        return tuple(self.folder / f"profile_{kind}.jsonl" for kind in KINDS)

    @property
    def run_1(self) -> Path:
        """Measurements of run 1."""
        return self.folder / "run_1.jsonl"


def command(*words: str, title: str, core: int | None = None) -> subprocess.Popen[bytes]:
    """Start one of hetrl's commands, on one core if asked."""
    print(f"$ {title}", flush=True)
    pin = (lambda: os.sched_setaffinity(0, {core})) if core is not None else None
    return subprocess.Popen([sys.executable, "-m", *words], preexec_fn=pin)  # no threads yet


def wait(*processes: subprocess.Popen[bytes]) -> None:
    """Wait for commands and stop the loop if one failed."""
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"a command failed with exit code {max(codes)}")


def prepare(folder: Path) -> Fleet:
    """Make a fresh folder with the demo's job, prompts, reward and model."""
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("model", "__pycache__", "*.json"))
    fleet = Fleet(folder=folder.resolve())
    print("$ python examples/demo/make_model.py", flush=True)
    subprocess.run([sys.executable, str(DEMO / "make_model.py"), str(fleet.model)], check=True)
    return fleet


def profile(fleet: Fleet) -> None:
    """Profile both devices at once, each on its own core, the slow one under the throttle."""
    began = time.perf_counter()
    processes = []
    for core, (kind, out) in enumerate(zip(KINDS, map(str, fleet.profiles), strict=True)):
        words = ["hetrl.tools.profile", "--device-name", kind, "--quick", "--model", str(fleet.model), "--out", out]
        title = f"hetrl profile --device-name {kind} --quick --model model --out profile_{kind}.jsonl"
        if kind in DUTY:
            words = [
                "hetrl.runtime.throttle",
                "--duty",
                str(DUTY[kind]),
                "--core",
                str(core),
                "--",
                sys.executable,
                "-m",
                *words,
            ]
            title += "   (slowed from outside)"
        processes.append(command(*words, title=title, core=core))
    wait(*processes)
    print(f"profiled in {time.perf_counter() - began:.0f} s", flush=True)


def fit(fleet: Fleet) -> Path:
    """Fit both profiles into one cost model."""
    out = fleet.folder / "fitted.json"
    words = [
        "hetrl.tools.fit",
        "--measurements",
        *map(str, fleet.profiles),
        "--config",
        str(fleet.job),
        "--out",
        str(out),
    ]
    wait(command(*words, title="hetrl fit --measurements profile_*.jsonl --config job.yaml --out fitted.json"))
    return out


def plan(fleet: Fleet, models: Path, name: str) -> tuple[Job, PlanDocument]:
    """Plan the job with a cost model."""
    out = fleet.folder / name
    words = ["hetrl.tools.plan", "--config", str(fleet.job), "--models", str(models), "--out", str(out)]
    wait(command(*words, title=f"hetrl plan --config job.yaml --models {models.name} --out {name}"))
    return load_job(fleet.job), read_plan(out)


def launch(fleet: Fleet, job: Job, document: PlanDocument, store: MeasurementStore) -> Session:
    """Start engines and trainers on the plan's devices, as hetrl-launch does."""
    print("$ hetrl-launch --plan plan.json   (in this process, to try several seeds on the same engines)", flush=True)
    began = time.perf_counter()
    assert job.run is not None
    session = Session.start(
        document.plan,
        job,
        resolve_run(job.run, job, fleet.folder),
        store=store,
        prediction=prediction_of(document, job),
        throttle=DUTY,
    )
    throttled = ", ".join(f"device {device} by {means}" for device, means in session.throttled_by.items())
    print(f"Ray, engines and trainers up in {time.perf_counter() - began:.0f} s; slowed: {throttled}", flush=True)
    return session


def refit(fleet: Fleet, models: Path) -> Path:
    """Fold run 1 into the cost model."""
    out = fleet.folder / "refitted.json"
    words = ["hetrl.tools.refit", "--models", str(models), "--measurements", str(fleet.run_1), "--out", str(out)]
    words += ["--plan", str(fleet.folder / "plan.json")]
    wait(
        command(
            *words,
            title="hetrl refit --models fitted.json --measurements run_1.jsonl --plan plan.json --out refitted.json",
        )
    )
    return out
