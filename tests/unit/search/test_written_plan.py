"""Plans written by hand, hetrl estimate and hetrl explain."""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.errors import EXIT_INFEASIBLE, EXIT_INPUT, EXIT_OK, SpecError
from hetrl.search.context import SearchContext
from hetrl.search.written_plan import missing_tasks, written_plan
from hetrl.spec.presets import benchmark_instance
from hetrl.tools.main import main

CRITIC = {"tasks": ["critic_score", "critic_train"], "nodes": {"node-g6e-01": 4}}
OTHERS = {
    "tasks": ["actor_generate", "reward_score", "reference_score", "actor_train"],
    "nodes": {"node-p5-01": 8, "node-p4d-01": 8},
}


@pytest.fixture(scope="module")
def context() -> SearchContext:
    job = benchmark_instance("guide20")
    return SearchContext(job, UnitCosts(CostModel.builtin(), job.precision))


def test_missing_strategies_are_chosen(context: SearchContext) -> None:
    plan = written_plan(context, {"groups": [OTHERS, CRITIC]})
    assert not missing_tasks(context, plan)
    assert evaluate(context.job, plan, context.costs).feasible


def test_given_strategies_are_taken_literally(context: SearchContext) -> None:
    strategies = {
        "critic_score": {"micro_batch": 4},
        "critic_train": {"layers": [10, 8, 8, 6], "micro_batch": 1, "optimizer_states": "host"},
    }
    plan = written_plan(context, {"groups": [OTHERS, CRITIC], "strategies": strategies})
    train = plan.task("critic_train")
    assert [stage.num_layers for stage in train.replicas[0].stages] == [10, 8, 8, 6]
    assert train.residency.optimizer_states == "host"
    assert len(plan.task("critic_score").replicas) == 4


def test_all_mistakes_are_reported_at_once(context: SearchContext) -> None:
    values = {"groups": [{"tasks": ["critic_scor"], "nodes": {"node-g6e-01": 9}}], "strategies": {"nobody": {}}}
    with pytest.raises(SpecError) as caught:
        written_plan(context, values)
    for part in ("critic_scor", "at most 4", "nobody"):
        assert part in str(caught.value)


MISTAKES = {
    "unknown task": ("groups", 0, "tasks", 0, "actor_generat"),
    "at most 4": ("groups", 1, "nodes", "node-g6e-01", 5),
    "no room for 4 stages": ("strategies", "critic_train", "tensor", 3),
    "strategies.critic_score.micro": ("strategies", "critic_score", "micro", 4),
    "recompute: must be": ("strategies", "critic_train", "recompute", "yes"),
    "strategies.nobody": ("strategies", "nobody", {}),
}
HIDDEN = {"at most 4", "no room for 4 stages"}
"""A layout is only read where its group's devices are known."""


@pytest.mark.parametrize("pair", list(combinations(MISTAKES, 2)), ids=" and ".join)
def test_one_mistake_does_not_hide_another(context: SearchContext, pair: tuple[str, str]) -> None:
    train = {"layers": [9, 8, 8, 7], "micro_batch": 1, "optimizer_states": "host"}
    values = deepcopy({"groups": [OTHERS, CRITIC], "strategies": {"critic_score": {}, "critic_train": train}})
    for *path, last, wrong in (MISTAKES[each] for each in pair):
        place: Any = values
        for step in path:
            place = place[step]
        place[last] = wrong
    with pytest.raises(SpecError) as caught:
        written_plan(context, values)
    found = [each in str(caught.value) for each in pair]
    assert all(found) or (set(pair) == HIDDEN and any(found))


def test_estimate_and_explain_speak_of_a_written_plan(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(repository / "configs" / "rlhf_70b.yaml")
    out = tmp_path / "plan.json"
    assert main(["plan", "--config", config, "--out", str(out), "--budget", "60", "--quiet"]) == EXIT_OK
    capsys.readouterr()
    assert main(["estimate", str(out)]) == EXIT_OK
    assert "critical path" in capsys.readouterr().out
    assert main(["explain", str(out), "--quick"]) == EXIT_OK
    assert "what binds each task" in capsys.readouterr().out
    written = tmp_path / "hand.yaml"
    written.write_text(json.dumps({"groups": [OTHERS, CRITIC]}))
    assert main(["estimate", str(written), "--config", config, "--json"]) == EXIT_OK
    assert json.loads(capsys.readouterr().out)["step_seconds"] > 0
    assert main(["estimate", str(written)]) == EXIT_INPUT
    strategies = {task: {"tensor": 1} for task in CRITIC["tasks"]}
    written.write_text(json.dumps({"groups": [OTHERS, CRITIC], "strategies": strategies}))
    assert main(["estimate", str(written), "--config", config]) == EXIT_INFEASIBLE
    assert "does not fit" in capsys.readouterr().out
