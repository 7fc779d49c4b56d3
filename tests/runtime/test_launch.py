"""hetrl-launch as a user runs it: how it ends and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.demo import launch_command, launch_environment, write_plan
from tests.helpers.processes import listen_to_interrupts, marked

START_SECONDS = 480  # limits of patience on a busy machine, not expectations
END_SECONDS = 180
LITTER = ("psm_", "vllm", "hetrl", "plasma", "torch_")

HOLD_A_CLUSTER = """
import sys
import ray
from pathlib import Path
from hetrl.runtime.cluster import start
from hetrl.runtime.placement import NodeNeed
cluster = start([NodeNeed(node=n, id=str(n), device_type=t, devices=(n,)) for n, t in enumerate(sys.argv[1:])])
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
cluster.close()
"""


def workers(mark: str) -> dict[int, str]:
    """Ray actors of the launcher among them; Ray's own services and its idle processes are not."""
    return {pid: title for pid, title in marked(mark).items() if title.startswith("ray::") and "Worker" in title}


def wait_until(what: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def wait_for(what: Callable[[], object], seconds: float, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + seconds
    while not what():
        if process.poll() is not None:
            raise AssertionError(f"ended with {process.returncode}: {process.communicate()}")
        if time.monotonic() > end:
            raise AssertionError("waited in vain")
        time.sleep(0.1)


def litter() -> set[str]:
    shared = {str(each) for each in Path("/dev/shm").iterdir() if each.name.startswith(LITTER)}
    return shared | {str(each) for each in Path("/tmp").glob("hetrl-ray-*")}


def num_lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_ctrl_c_ends_cleanly_and_the_run_can_go_on(tmp_path: Path, model_folder: Path, mark: str) -> None:
    plan = write_plan(tmp_path / "plan.json", model_folder, {"run.checkpoint_every": 1, "run.num_steps": 100_000})
    out = tmp_path / "run"
    before = litter()
    process = subprocess.Popen(
        launch_command("--plan", plan, "--out", out, "--trust-plan"),
        env=launch_environment(mark),
        cwd=tmp_path,
        start_new_session=True,
        preexec_fn=listen_to_interrupts,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: num_lines(out / "metrics.jsonl") >= 3, START_SECONDS, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole foreground group
    _, errors = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert marked(mark) == {}
    assert litter() <= before
    checkpoints = sorted((out / "checkpoints").iterdir())
    assert checkpoints
    for folder in checkpoints:
        assert {"model.safetensors", "optimizer.safetensors", "state.json"} <= {each.name for each in folder.iterdir()}
    num_done = json.loads((checkpoints[-1] / "state.json").read_text())["num_steps_done"]

    resumed = subprocess.run(
        launch_command("--plan", plan, "--out", out, "--trust-plan", "--resume", "--steps", num_done + 2),
        env=launch_environment(mark),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stderr
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == list(range(num_done + 2))
    assert (out / "checkpoints" / f"step-{num_done + 2:06d}").is_dir()
    assert list((out / "tensorboard").glob("events*"))
    assert marked(mark) == {}


def test_a_killed_launcher_leaves_nothing(tmp_path: Path, model_folder: Path, mark: str) -> None:
    plan = write_plan(tmp_path / "plan.json", model_folder, {"run.num_steps": 100_000})
    out = tmp_path / "run"
    before = litter()
    process = subprocess.Popen(
        launch_command("--plan", plan, "--out", out, "--trust-plan", "--throttle", "cpu-slow=0.5"),
        env=launch_environment(mark),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: num_lines(out / "metrics.jsonl") >= 1, START_SECONDS, process)
    process.kill()
    process.communicate(timeout=END_SECONDS)
    wait_until(lambda: not marked(mark), END_SECONDS)
    assert litter() <= before
    assert not list(Path("/sys/fs/cgroup").glob(f"**/hetrl-{process.pid}-*"))


@pytest.fixture
def foreign_ray(mark: str) -> Iterator[str]:
    """A Ray that is not the launcher's, with the demo's two devices."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_A_CLUSTER, "cpu-fast", "cpu-slow"],
        env=launch_environment(mark),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.communicate(timeout=END_SECONDS)


def test_a_killed_worker_ends_the_run_with_its_name(
    tmp_path: Path, model_folder: Path, mark: str, foreign_ray: str
) -> None:
    plan = write_plan(tmp_path / "plan.json", model_folder, {"run.num_steps": 100_000})
    out = tmp_path / "run"
    before = litter()
    process = subprocess.Popen(
        launch_command("--plan", plan, "--out", out, "--trust-plan", "--address", foreign_ray),
        env=launch_environment(mark),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: num_lines(out / "metrics.jsonl") >= 1, START_SECONDS, process)
    trainers = [pid for pid, title in workers(mark).items() if "TrainWorker" in title]
    assert len(trainers) == 2
    os.kill(max(trainers), signal.SIGKILL)
    _, errors = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 4
    assert "actor_train[" in errors and "died" in errors
    assert "Traceback" not in errors
    wait_until(lambda: not workers(mark), END_SECONDS)
    assert litter() <= before


def test_devices_the_running_ray_lacks_are_named(
    tmp_path: Path, model_folder: Path, mark: str, foreign_ray: str
) -> None:
    cpu = {"vendor": "cpu", "flops": {"fp32": "50GFLOPS"}, "memory": "4GiB", "memory_bandwidth": "8GB/s"}
    other = {"device_types.cpu-turbo": cpu, "cluster_topology.nodes[1].type": "cpu-turbo"}
    plan = write_plan(tmp_path / "plan.json", model_folder, other)
    out = tmp_path / "run"
    ended = subprocess.run(
        launch_command("--plan", plan, "--out", out, "--trust-plan", "--address", foreign_ray),
        env=launch_environment(mark),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=END_SECONDS,
        check=False,
    )
    assert ended.returncode == 2
    assert "Ray has no device of type cpu-turbo" in ended.stderr
    assert "1 cpu-fast, 1 cpu-slow" in ended.stderr
    assert not out.exists()
