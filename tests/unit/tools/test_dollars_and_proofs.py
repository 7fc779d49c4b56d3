"""Bounds, gaps and proofs are told in the unit of what is minimised, by ``plan``, ``explain`` and ``estimate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hetrl.tools.main import main
from tests.helpers.jobs import TWO_NODES

OBJECTIVES = ("step_seconds", "tokens_per_second", "usd_per_step", "usd_per_million_tokens")


def plan(folder: Path, objective: str, solver: str, *more: str) -> dict[str, Any]:
    (folder / "job.yaml").write_text(TWO_NODES.replace("max_search_seconds: 60", "max_search_seconds: 600"))
    arguments = ["--config", str(folder / "job.yaml"), "--out", str(folder / "plan.json"), "--quiet"]
    assert main(["plan", *arguments, "--solver", solver, "--objective", objective, "--budget", "100", *more]) == 0
    return dict(json.loads((folder / "plan.json").read_text()))


@pytest.mark.parametrize("solver", ["hybrid", "ilp"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_bound_and_gap_are_those_of_the_objective(
    tmp_path: Path, objective: str, solver: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = plan(tmp_path, objective, solver)
    said = capsys.readouterr().out
    search, dollars = document["search"], objective.startswith("usd")
    value = document["prediction"]["usd_per_step" if dollars else "step_seconds"]
    bound = search["lower_bound_usd_per_step" if dollars else "lower_bound_seconds"]
    assert ("lower_bound_seconds" in search) is not dollars
    assert 0 < bound <= value * (1 + 1e-12)
    assert search["gap"] == pytest.approx(value / bound - 1)
    if solver == "hybrid":
        assert ("no plan of the search space is cheaper" in said) is dollars
        assert ("no plan of the search space is faster" in said) is not dollars
    else:
        assert search["lower_bound"] == pytest.approx(search["objective_value"], rel=1e-9)
        assert ("no certificate" in said) is dollars
        assert ("price_curve" in search) is dollars
    assert "lower bound 0" not in said
    assert main(["explain", str(tmp_path / "plan.json"), "--quick"]) == 0
    explained = capsys.readouterr().out
    unit = "$ per step" if dollars else "s"
    assert (
        f"proven: the optimum of the declared space is {search.get('objective_value', 0):.5g} {unit}\n" in explained
    ) is (solver == "ilp")
    assert ("declared space: All" in explained) is (solver == "ilp")


def test_a_bound_in_dollars_holds_for_the_proven_optimum(tmp_path: Path) -> None:
    searched = plan(tmp_path, "usd_per_step", "hybrid")["search"]["lower_bound_usd_per_step"]
    proven = plan(tmp_path, "usd_per_step", "ilp")["search"]
    hurried = plan(tmp_path, "usd_per_step", "ilp", "--max-search-seconds", "0.01")["search"]
    assert hurried["status"] == "feasible"
    assert searched == pytest.approx(hurried["lower_bound_usd_per_step"])
    assert 0 < searched <= proven["objective_value"] <= hurried["plan_value"] * (1 + 1e-9)


def test_a_proof_that_was_cut_off_says_that_there_is_no_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = plan(tmp_path, "usd_per_step", "ilp", "--max-search-seconds", "0.01")
    said = capsys.readouterr().out
    assert "price_curve" not in document["search"]
    assert "no price curve: the proof that it starts from was cut off" in said
    assert main(["explain", str(tmp_path / "plan.json"), "--quick"]) == 0
    assert "not proven optimal" in capsys.readouterr().out


@pytest.mark.slow
def test_explain_does_not_put_a_bound_of_its_own_over_a_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(tmp_path, "step_seconds", "ilp")
    capsys.readouterr()
    assert main(["explain", str(tmp_path / "plan.json")]) == 0
    said = capsys.readouterr().out
    assert "gap 0.00%" in said
    assert "no plan of the search space is faster" not in said
    plan(tmp_path, "usd_per_step", "hybrid")
    assert main(["explain", str(tmp_path / "plan.json")]) == 0
    assert "no plan of the search space is cheaper" in capsys.readouterr().out


def test_the_estimate_begins_with_dollars_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = plan(tmp_path, "step_seconds", "hybrid")
    capsys.readouterr()
    assert main(["estimate", str(tmp_path / "plan.json")]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert f"${document['prediction']['usd_per_step']:.4g} per step" in first
