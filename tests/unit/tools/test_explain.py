"""Why a plan is as it is: what binds, why the runner-up lost, what one more device brings; the blueprint example."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel
from hetrl.cost.schedule import Schedule
from hetrl.cost.unit import UnitCosts
from hetrl.search.explain import bindings, group_bindings, one_more_device, why_slower
from hetrl.search.hybrid import solve
from hetrl.spec.presets import benchmark_instance
from hetrl.tools.main import main


@pytest.fixture(scope="module")
def guide_plan(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("guide") / "plan.json"
    config = str(repository / "configs" / "rlhf_70b.yaml")
    assert main(["plan", "--config", config, "--out", str(out), "--budget", "100", "--quiet"]) == 0
    return out


def test_shares_of_a_group_are_those_of_its_tasks_by_their_seconds() -> None:
    job = benchmark_instance("guide20", {"optimizer.budget": 100})
    costs = UnitCosts(CostModel.builtin(), job.precision)
    plan = solve(job, costs).plan
    estimate = evaluate(job, plan, costs)
    tasks = {each.task: each for each in bindings(job, plan, estimate)}
    groups = group_bindings(plan, estimate, list(tasks.values()))
    assert [each.tasks for each in groups] == [group.tasks for group in plan.groups]
    for each in groups:
        total = sum(estimate.tasks[name].seconds for name in each.tasks)
        compute = sum(tasks[name].shares.get("compute", 0.0) * estimate.tasks[name].seconds for name in each.tasks)
        assert each.shares["compute"] == pytest.approx(compute / total)
        assert sum(each.shares.values()) == pytest.approx(1.0)
        assert each.shares[each.limit] == max(each.shares.values())
        assert 0 < each.busy_share <= 1 + 1e-9
    assert {name for each in groups for name in each.critical} == set(estimate.schedule.critical_path)


def test_the_runner_up_lost_where_its_path_is_longer() -> None:
    job = benchmark_instance("guideC/Llama-3-8B/PPO", {"optimizer.budget": 60})
    costs = UnitCosts(CostModel.builtin(), job.precision)
    estimate = solve(job, costs).estimate

    def with_path(**ends: float) -> Schedule:
        starts = dict(zip(ends, (0.0, *ends.values()), strict=False))
        return Schedule(start=starts, end=ends, critical_path=tuple(ends))

    chosen = replace(estimate, schedule=with_path(generate=4.0, train=10.0))
    rival = replace(estimate, schedule=with_path(generate=3.0, score=5.0, train=11.5))
    assert why_slower(chosen, rival) == [("score", 0.0, 2.0), ("train", 6.0, 6.5)]


@pytest.mark.slow
def test_one_more_device_never_costs_time() -> None:
    job = benchmark_instance("guideB/Llama-3-8B/PPO", {"optimizer.budget": 60})
    costs = UnitCosts(CostModel.builtin(), job.precision)
    result = solve(job, costs)
    found = dict(one_more_device(job, costs, result.plan))
    assert set(found) == {"A100-40GB", "L40S"}
    assert all(each.step_seconds <= result.estimate.step_seconds for each in found.values())


def test_explain_names_groups_path_and_memory(guide_plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["explain", str(guide_plan), "--quick"]) == 0
    said = capsys.readouterr().out
    assert "critical path:" in said
    assert "group 0 (actor_generate" in said
    assert "memory: actor_train: optimizer states live in host RAM" in said
    assert main(["explain", str(guide_plan.parent / "none.json"), "--quick"]) == 2


def test_the_blueprints_first_fit_is_the_guides_and_does_not_fit(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("blueprint", repository / "examples" / "blueprint.py")
    assert spec is not None and spec.loader is not None
    blueprint = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(blueprint)
    # what the guide's listing prints: gpu-h100-01, gpu-h100-02, gpu-h100-02 and gpu-l40s-01
    assert blueprint.first_fit() == {"actor": "h100-1", "critic": "h100-2", "reward": "h100-2", "reference": "l40s-1"}
    blueprint.judge("Llama-3-8B")
    first_fit, planner = capsys.readouterr().out.split("the planner:")
    assert "devices[0].actor_generate: " in first_fit and "[DEVICE_MEMORY]" in first_fit
    assert "one step takes" in planner


ASYNCHRONOUS = """
workflow: {algorithm: GRPO, actor_model: Qwen2.5-0.5B, reference_model: Qwen2.5-0.5B, staleness: STALENESS}
cluster_topology: {nodes: [{id: a, gpus: 2, type: L4}]}
"""


@pytest.mark.parametrize("staleness", [1, 8])
def test_a_period_is_explained_by_what_decides_on_it(
    staleness: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shares are of one step's path, which is longer than the period; the period is a group's load, or the loop's."""
    job = tmp_path / "job.yaml"
    job.write_text(ASYNCHRONOUS.replace("STALENESS", str(staleness)))
    assert main(["plan", "--config", str(job), "--out", str(tmp_path / "plan.json"), "--budget", "60", "--quiet"]) == 0
    planned = capsys.readouterr().out
    assert "timeline of one step, in seconds; steps overlap, one ends every " in planned
    assert main(["explain", str(tmp_path / "plan.json")]) == 0
    said = capsys.readouterr().out
    first, second, *_ = said.splitlines()
    assert first.startswith("period ") and ("busy all the time" in first or "over 1 + staleness" in first)
    assert second.startswith("critical path of one step, ")
    path = said.partition("what binds each group")[0].splitlines()[2:]
    assert path and all(float(line.split()[-1].rstrip("%")) <= 100.0 for line in path)
