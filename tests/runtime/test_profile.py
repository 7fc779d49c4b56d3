"""A small real profile: torch, a vLLM engine and two gloo processes; then a fit of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetrl.cost.model import CostModel
from hetrl.measure import load_measurements
from hetrl_profiler.model_fit import fit_profile
from tests.helpers.demo import launch_environment
from tests.helpers.processes import listen_to_interrupts, marked

pytestmark = pytest.mark.runtime

SCRIPT = """
import sys
from pathlib import Path
from hetrl_profiler.device import cpu_core, set_environment

if __name__ == "__main__":
    set_environment()
    from hetrl_profiler.points import Budget
    from hetrl_profiler.profile import Request, profile

    budget = Budget(
        num_shapes={"gemm": 12, "attention_prefill": 6, "attention_decode": 6, "memory": 6, "memory_norm": 6},
        point_seconds=0.01, max_flops=1e8, max_bytes=1e7, phase_seconds=2.0,
        stages=("operators", "optimizer", "train", "engine", "copies", "links"),
    )
    out, model = map(Path, sys.argv[1:3])
    request = Request(device=cpu_core("core", "fp32"), out=out, budget=budget, model_folder=model, quiet=True)
    found = profile(request)
    print(len(found.stored), len(found.impossible))
"""


@pytest.fixture(scope="module")
def profiled(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """File of measurements, and how many each of two profiles into it had stored at its end."""
    folder = tmp_path_factory.mktemp("profile")
    script, out = folder / "script.py", folder / "measurements.jsonl"
    script.write_text(SCRIPT)
    answers = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(script), str(out), str(model_folder)],
            capture_output=True, text=True, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        answers.append(done.stdout.splitlines()[-1])
    return out, answers


INTERRUPTED = """
import importlib, os, signal, sys
from hetrl.tools.main import main

kind, _, name = sys.argv[1].partition(" ")

class Import:
    def find_spec(self, module, *_):
        if module == name:
            sys.meta_path.remove(self)
            os.killpg(0, signal.SIGINT)

def interrupted(*args, **more):
    setattr(owner, last, original)
    os.killpg(0, signal.SIGINT)
    return original(*args, **more)

if kind == "import":
    sys.meta_path.insert(0, Import())
else:
    module, _, path = name.partition(":")
    *parts, last = path.split(".")
    owner = importlib.import_module(module)
    for part in parts:
        owner = getattr(owner, part)
    original = getattr(owner, last)
    setattr(owner, last, interrupted)
if __name__ == "__main__":
    sys.exit(main(["profile", "--device", "cpu", "--device-name", "core", *sys.argv[2:]]))
"""
"""``hetrl profile`` whose group gets SIGINT, as at Ctrl-C, at an import or a call: at that stage on any machine."""


@pytest.mark.parametrize(
    ("moment", "stage"),
    [
        ("import torch._dynamo", "engine"),  # while vLLM is imported
        ("import vllm.v1.worker.cpu_worker", "engine"),  # while the engine starts
        ("call hetrl_profiler.engine:EnginePhases.points", "engine"),  # it runs
        ("call hetrl_profiler.links:_answer_of", "links"),  # other processes are importing torch
    ],
)
def test_ctrl_c_ends_the_profile_quietly_and_alone(
    moment: str, stage: str, tmp_path: Path, model_folder: Path, mark: str
) -> None:
    script, out = tmp_path / "interrupted.py", tmp_path / "measurements.jsonl"
    script.write_text(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, str(script), moment, "--out", str(out), "--model", str(model_folder), "--stage", stage],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300, start_new_session=True,
        preexec_fn=listen_to_interrupts, env={**launch_environment(mark), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 130, done.stderr[-3000:]
    assert done.stderr.splitlines()[-1] == "hetrl profile: interrupted"
    assert "Traceback" not in done.stderr and "Process " not in done.stderr
    assert marked(mark) == {}
    assert not out.exists(), "nothing was measured"


def test_every_kind_is_measured(profiled: tuple[Path, list[str]]) -> None:
    rows = load_measurements(profiled[0])
    kinds = {each.kind for each in rows}
    assert {"gemm", "attention_prefill", "attention_decode", "memory", "send", "all_reduce"} <= kinds
    assert {"memory_norm", "copy_to_device", "copy_to_host", "all_gather", "reduce_scatter"} <= kinds
    assert {"score", "forward_backward", "optimizer_step", "generate", "load_weights"} <= kinds
    for each in rows:
        assert each.seconds > 0 and each.device_type == "core" and each.labels["source"] == "profile"
    generated = [each for each in rows if each.kind == "generate"]
    for each in generated:
        tokens, sequences = each.amounts["num_response_tokens"], each.amounts["num_sequences"]
        assert tokens / sequences <= each.amounts["num_iterations"] <= 3 * tokens / sequences


def test_taking_it_up_again_measures_no_point_twice(profiled: tuple[Path, list[str]]) -> None:
    """The second profile goes on where the first one's time was over."""
    points = [each.labels["point"] for each in load_measurements(profiled[0])]
    assert len(points) == len(set(points))
    first, second = (answer.split() for answer in profiled[1])
    assert int(second[0]) == len(points) >= int(first[0]) >= 40
    assert first[1] == second[1] == "0"  # nothing was faster than physics


def test_a_fit_explains_what_was_measured(profiled: tuple[Path, list[str]]) -> None:
    fitted, operators = fit_profile(load_measurements(profiled[0]), CostModel.builtin())
    assert {each.operator for each in operators} == {
        "gemm", "attention_prefill", "attention_decode", "memory", "memory_norm"
    }  # fmt: skip
    curves = {(each.operation, each.num_ranks) for each in fitted.model.collectives if each.device == "core"}
    assert curves == {("all_reduce", 2), ("all_gather", 2), ("reduce_scatter", 2)}
    assert 1e8 < fitted.model.host_links["core"] < 1e12
    small, large = fitted.model.library.fitted("core", "gemm", "fp32").predict(m=[16, 1024], n=256, k=256).seconds
    assert 8 * small < large < 256 * small
    for change in fitted.changes:
        assert change.error_after <= max(change.error_before, 0.3), change
    phases = {phase for _, phase in fitted.calibrations}
    assert phases == {"prefill", "generate", "score", "train", "optimizer", "sync"}, (
        "no job says over which link gradients are reduced"
    )
    assert all(new.provenance == "measured" and new.scale > 0 for _, new in fitted.calibrations.values())
