"""`hetrl fit --measurements`, `hetrl refit` and the inputs that `hetrl profile` refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hetrl.cost.model import CostModel
from hetrl.measure import MachineFacts, Measurement
from hetrl.spec.job import Job
from hetrl.tools import fit, plan, profile, refit
from hetrl_profiler.described import slowdown_lines
from hetrl_profiler.points import FULL, QUICK, Budget
from hetrl_profiler.shapes import as_amounts, candidates

MACHINE = MachineFacts(cpu="x", num_cores=2, memory_bytes=2**34, system="y", software={})
LIMITS = {"max_flops": 6e8, "max_bytes": 48e6, "dtype_bytes": 4}


def write(path: Path, rows: list[Measurement]) -> Path:
    path.write_text("".join(json.dumps(each.to_json()) + "\n" for each in rows))
    return path


def true_seconds(operator: str, shape: tuple[float, ...], slow: float) -> float:
    """A made-up core: 40 GFLOP/s, 8 GB/s, 5 us per call."""
    if operator == "gemm":
        m, n, k = shape
        return slow * (5e-6 + max(2 * m * n * k / 40e9, 4 * (m * n + n * k + m * k) / 8e9))
    if operator == "memory":
        return slow * (5e-6 + shape[0] / 8e9)
    batch, heads, kv_heads, head_dim, length = shape
    if operator == "attention_prefill":
        return slow * (1e-5 + 2 * batch * heads * length * (length + 64) * head_dim / 20e9)
    return slow * (1e-5 + 8 * batch * kv_heads * length * head_dim / 4e9)


def profiled(device: str, slow: float, config: dict[str, object]) -> list[Measurement]:
    """A quick profile of the made-up core, with a factor from CPU to wall time."""
    rows = []
    for operator, number in {"gemm": 60, "attention_prefill": 36, "attention_decode": 40, "memory": 12}.items():
        for shape in candidates(operator, 7, **LIMITS)[:number]:
            busy = true_seconds(operator, shape, 1.0)
            rows.append(row(operator, device, as_amounts(operator, shape), busy, slow))
    labels = {"model": "tiny", "config": json.dumps(config)}
    for sequences, tokens in ((8, 48), (4, 32), (16, 48), (32, 48)):
        amounts = {"num_sequences": sequences, "num_tokens": sequences * tokens, "micro_batch_size": sequences}
        rows.append(row("score", device, amounts, 3e-3 + 2e-5 * sequences * tokens, slow, labels))
        rows.append(row("forward_backward", device, amounts, 1e-2 + 6e-5 * sequences * tokens, slow, labels))
    rows.append(row("optimizer_step", device, {"num_parameters": 869504}, 3e-3, slow, labels))
    rows.append(row("load_weights", device, {"num_bytes": 3478016}, 2e-2, slow, labels))
    for prompts, length in ((8, 16), (1, 16), (16, 1), (16, 32), (4, 64)):
        amounts = {
            "num_sequences": 8 * prompts, "num_prompts": prompts, "num_prompt_tokens": 16 * prompts,
            "num_response_tokens": 8 * prompts * length, "num_iterations": length,
        }  # fmt: skip
        rows.append(row("generate", device, amounts, 5e-3 + length * (2e-3 + 1e-4 * 8 * prompts), slow, labels))
    return rows


def row(
    kind: str, device: str, amounts: dict[str, float], busy: float, slow: float, labels: dict[str, str] | None = None
) -> Measurement:
    return Measurement(
        kind=kind,
        device_type=device,
        amounts=amounts,
        measured={"seconds": busy * slow, "busy_seconds": busy, "slowdown": slow},
        labels={"source": "profile", "dtype": "fp32", **(labels or {})},
        machine=MACHINE,
        date="2026-01-01T00:00:00+00:00",
    )


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, made_up: SimpleNamespace) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    files = [
        write(folder / f"{device}.jsonl", profiled(device, slow, made_up.config))
        for device, slow in (("fast", 1.0), ("slow", 2.0))
    ]
    out = folder / "model.json"
    assert fit.main(["--measurements", str(files[0]), "--measurements", str(files[1]), "--out", str(out)]) == 0
    return out


def test_a_fit_predicts_unseen_shapes_of_both_devices(fitted: Path) -> None:
    model = CostModel.load(fitted)
    for device, slow in (("fast", 1.0), ("slow", 2.0)):
        for operator, limit in {
            "gemm": 0.08,
            "attention_prefill": 0.15,
            "attention_decode": 0.15,
            "memory": 0.05,
        }.items():
            shapes = candidates(operator, 31, **LIMITS)[:40]
            own = model.library.fitted(device, operator, "fp32")
            assert own is not None and own.provenance == "fitted"
            named = {
                name: [as_amounts(operator, shape)[name] for shape in shapes]
                for name in as_amounts(operator, shapes[0])
            }
            seconds = own.predict(**named).seconds
            errors = np.abs(seconds / [true_seconds(operator, shape, slow) for shape in shapes] - 1)
            assert np.median(errors) < limit, (device, operator)


def test_a_fit_sees_the_slow_down_nobody_told_it(fitted: Path) -> None:
    model = CostModel.load(fitted)
    fast, slow = (model.calibration(device, "sync") for device in ("fast", "slow"))
    assert fast.provenance == slow.provenance == "measured"
    assert fast.per_iteration_seconds == pytest.approx(2e-2)
    assert slow.per_iteration_seconds == pytest.approx(4e-2)


def test_a_profile_says_how_slow_each_core_was(made_up: SimpleNamespace) -> None:
    rows = [*profiled("fast", 1.04, made_up.config), *profiled("slow", 2.1, made_up.config)]
    cores = [replace(each, labels={**each.labels, "device_kind": "cpu"}) for each in rows]
    alone, slowed = slowdown_lines(cores)
    assert alone == "fast: a CPU second took 1.04 s while it was profiled"
    assert slowed.startswith("slow: a CPU second took 2.10 s while it was profiled; a quota or other programs")
    assert slowdown_lines([replace(each, labels={**each.labels, "device_kind": "cuda"}) for each in rows]) == []
    assert slowdown_lines([replace(each, labels={}) for each in cores]) == []  # of a run


@pytest.mark.parametrize(("flag", "budget"), [("--quick", QUICK), ("--full", FULL)])
def test_help_counts_the_shapes_that_are_measured(
    flag: str, budget: Budget, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile.main(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    count = re.search(rf" {flag} (?:all stages, about )?([\d,]+) operator shapes", said)
    assert count is not None
    assert int(count[1].replace(",", "")) == pytest.approx(sum(budget.num_shapes.values()), rel=0.05)


def test_planning_gives_the_slow_device_less(fitted: Path, tmp_path: Path, made_up: SimpleNamespace) -> None:
    config = tmp_path / "job.yaml"
    config.write_text(made_up.job_text)
    out = tmp_path / "plan.json"
    assert plan.main(["--config", str(config), "--models", str(fitted), "--out", str(out), "--quiet"]) == 0
    document = json.loads(out.read_text())
    assert document["provenance"]["fast.gemm"] == "fitted" and document["provenance"]["slow.train"] == "measured"
    (train,) = (task for task in document["tasks"] if task["kind"] == "train")
    if len(train["replicas"]) == 2:
        shares = {replica["stages"][0]["devices"][0]: replica["num_prompts"] for replica in train["replicas"]}
        assert 14 <= shares[0] <= 18  # two thirds of 24 prompts, as far as fixed costs leave it


def test_refit_writes_a_model_and_names_drift(
    fitted: Path, tmp_path: Path, job: Job, made_up: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "job.yaml"
    config.write_text(made_up.job_text)
    known = tmp_path / "known.json"
    measured = {key: replace(each, provenance="measured") for key, each in made_up.truth.items()}
    replace(CostModel.load(fitted), calibrations=measured).save(known)
    slower = {
        key: replace(each, scale=1.5 * each.scale, per_iteration_seconds=1.5 * each.per_iteration_seconds)
        if key == ("slow", "train")
        else each
        for key, each in measured.items()
    }
    now = replace(CostModel.load(fitted), calibrations=slower)
    rows = [each for seed in range(6) for each in made_up.run_of(job, now, (16, 8), 32, noise=0.02, seed=seed)]
    run = write(tmp_path / "run.jsonl", rows)
    out = tmp_path / "new.json"
    words = ["--models", str(known), "--measurements", str(run), "--config", str(config), "--out", str(out)]
    assert refit.main(words) == 0
    assert re.search(
        r"^drift: slow takes another time: forward_backward x1\.(4[6-9]|5[0-4])$", capsys.readouterr().out, re.MULTILINE
    )
    changed, same = CostModel.load(out).calibration("slow", "train"), CostModel.load(out).calibration("fast", "train")
    assert changed.per_iteration_seconds == pytest.approx(1.5 * 2e-2, rel=0.1)
    assert same.per_iteration_seconds == pytest.approx(9e-3, rel=0.1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("{}\n", "another schema version"),
        ("", "no measurements of hetrl profile"),
    ],
)
def test_fit_refuses_what_is_no_profile(
    tmp_path: Path, content: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.jsonl"
    if content is not None:
        path.write_text(content)
    out = tmp_path / "model.json"
    assert fit.main(["--measurements", str(path), "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--core", "4096"], "--core: not usable"),
        (["--dtype", "int3"], "--dtype: unknown"),
        (["--model", "nowhere"], "--model: no model there"),
        (["--responses-per-prompt", "0"], "--responses-per-prompt: must be at least 1"),
    ],
)
def test_profile_refuses_bad_input(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import os

    cores = os.sched_getaffinity(0)
    environment = dict(os.environ)
    out = tmp_path / "m.jsonl"
    try:
        assert profile.main(["--out", str(out), "--device", "cpu", "--quiet", *words]) == 2
    finally:
        os.sched_setaffinity(0, cores)
        os.environ.clear()
        os.environ.update(environment)
    assert message in capsys.readouterr().err
    assert not out.exists()
