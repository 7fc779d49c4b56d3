"""Replays: decoding against a loop over iterations, composition against the schedule, and no spread means no change."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel
from hetrl.cost.replays import CHUNK, Spread, compose_steps, replayed_steps, response_lengths
from hetrl.cost.schedule import Activity, asynchronous_period, replay
from hetrl.cost.unit import UnitCosts
from hetrl.plan.plan import Plan
from hetrl.search.hybrid import solve
from hetrl.spec.job import Batch, Job
from hetrl.spec.presets import benchmark_instance
from hetrl.tools.main import main
from hetrl_kernels.sweeps import replay_decoding

GUIDE_C = "guideC/Llama-3-8B/PPO"


def planned(name: str = GUIDE_C, **overrides: object) -> tuple[Job, Plan, UnitCosts]:
    job = benchmark_instance(name, {"optimizer.budget": 100, **overrides})
    costs = UnitCosts(CostModel.builtin(), job.precision)
    return job, solve(job, costs).plan, costs


def decoded_token_by_token(lengths: list[int], table: np.ndarray, longest: int) -> tuple[float, int]:
    """Seconds and iterations of a loop in which every running response gains a token per iteration."""
    contexts = np.linspace(0.0, longest, table.shape[1])
    waiting, running, seconds, iterations = list(lengths), [], 0.0, 0
    while waiting or running:
        while waiting and len(running) < len(table):
            running.append([0, waiting.pop(0)])
        progress = float(np.mean([done + 0.5 for done, _ in running]))
        seconds += float(np.interp(progress, contexts, table[len(running) - 1]))
        iterations += 1
        running = [[done + 1, length] for done, length in running if done + 1 < length]
    return seconds, iterations


@pytest.mark.parametrize("slots", [1, 3, 8, 40])
def test_decoding_equals_a_loop_over_tokens(slots: int) -> None:
    rng = np.random.default_rng(slots)
    longest = 50
    lengths = rng.integers(1, longest + 1, size=(5, 30))
    table = np.linspace(1.0, 2.0, slots)[:, None] + np.linspace(0.0, 0.5, 9)[None, :]  # linear in the context
    seconds, iterations = replay_decoding(lengths, table, longest)
    for m in range(len(lengths)):
        expected, count = decoded_token_by_token(lengths[m].tolist(), table, longest)
        assert iterations[m] == count
        assert seconds[m] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("staleness", [0, 2])
def test_composition_equals_the_schedule(staleness: int) -> None:
    rng = np.random.default_rng(5)
    needs = {"generate": (), "reward": ("generate",), "critic": ("generate",), "train": ("reward", "critic")}
    groups = {"generate": (0,), "reward": (1,), "critic": (0,), "train": (0, 1)}
    seconds = {name: rng.random(CHUNK) for name in needs}
    moved = {(need, name): rng.random(CHUNK) for name, all_needs in needs.items() for need in all_needs}
    shape = [
        Activity(name=name, seconds=0.0, groups=groups[name], needs=tuple((need, 0.0) for need in needs[name]))
        for name in needs
    ]
    composed = compose_steps(shape, list(needs), seconds, moved, staleness)
    for m in range(CHUNK):
        single = [
            Activity(
                name=name,
                seconds=seconds[name][m],
                groups=groups[name],
                needs=tuple((need, moved[need, name][m]) for need in needs[name]),
            )
            for name in needs
        ]
        expected = asynchronous_period(single, staleness) if staleness else replay(single).seconds
        assert composed[m] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(("name", "tolerance"), [("guideC/Llama-3-8B/DPO", 1e-12), (GUIDE_C, 2e-3)])
def test_without_any_spread_the_evaluators_step_comes_out(name: str, tolerance: float) -> None:
    job, plan, costs = planned(name, **{"batch.mean_response_tokens": 1024, "batch.max_response_tokens": 1024})
    steps = replayed_steps(job, plan, costs, num_scenarios=3)
    assert steps == pytest.approx(evaluate(job, plan, costs).step_seconds, rel=tolerance)


def test_equal_seeds_give_equal_bits_and_longer_sweeps_continue_shorter_ones() -> None:
    job, plan, costs = planned()
    spread = Spread(devices=0.05, links=0.2)
    long = replayed_steps(job, plan, costs, num_scenarios=100, seed=3, spread=spread)
    short = replayed_steps(job, plan, costs, num_scenarios=70, seed=3, spread=spread)
    other = replayed_steps(job, plan, costs, num_scenarios=70, seed=4, spread=spread)
    assert long[:70].tobytes() == short.tobytes()
    assert short.tobytes() != other.tobytes()


def test_slow_devices_and_links_cost_time() -> None:
    job, plan, costs = planned("guide20")
    calm = np.median(replayed_steps(job, plan, costs, num_scenarios=128))
    for spread in (Spread(devices=0.1), Spread(links=0.5)):
        assert np.median(replayed_steps(job, plan, costs, num_scenarios=128, spread=spread)) > calm


def test_lengths_follow_the_jobs_distribution() -> None:
    uniform = (np.arange(10_000) + 0.5) / 10_000
    for mean in (100.0, 512.0, 900.0):
        lengths = response_lengths(Batch(mean_response_tokens=mean, max_response_tokens=1024), uniform)
        assert lengths.mean() == pytest.approx(mean, abs=0.5)  # whole tokens, at least one
        assert lengths.max() <= 1024
    histogram = Batch(response_histogram=((300, 1.0), (100, 3.0)))
    assert response_lengths(histogram, np.array([0.1, 0.74, 0.76, 0.99])).tolist() == [100, 100, 300, 300]


def test_estimate_prints_quantiles(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, plan = str(repository / "configs" / "rlhf_70b.yaml"), str(tmp_path / "plan.json")
    assert main(["plan", "--config", config, "--out", plan, "--budget", "60", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["estimate", plan, "--scenarios", "128", "--device-spread", "0.05", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["scenarios"]
    assert found["number"] == 128
    assert found["p10_seconds"] < found["p50_seconds"] < found["p90_seconds"]
    assert main(["estimate", plan, "--scenarios", "128"]) == 0
    assert "128 scenarios with drawn response lengths: p10 " in capsys.readouterr().out
    assert main(["estimate", plan, "--scenarios", "-1", "--link-spread", "9"]) == 2
    said = capsys.readouterr().err
    assert "--scenarios: out of range" in said and "--link-spread: out of range" in said
