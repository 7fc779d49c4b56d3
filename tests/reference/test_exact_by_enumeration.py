"""The exact solver against enumeration of its declared space with the readable evaluator's parts."""

from __future__ import annotations

import math

import pytest

from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.search.exact.problem import ExactProblem
from hetrl.search.exact.solver import solve_exact
from tests.reference.exhaustive import Exhaustive, TooLarge
from tests.reference.small_jobs import small_job

QUICK_SEEDS = (1, 2, 8, 16, 17, 18, 32, 34, 162)
SLOW_SEEDS = range(40, 120)


def compare(seed: int) -> str:
    """Solve and enumerate one job; returns the workflow it was about."""
    job = small_job(seed)
    costs = UnitCosts(CostModel.builtin(), job.precision)
    found = Exhaustive(ExactProblem(job, costs)).run()
    result = solve_exact(job, costs)
    if math.isinf(found.seconds):
        assert result.status == "infeasible", f"seed {seed}"
        return "infeasible"
    assert result.status == "optimal", f"seed {seed}"
    assert result.certificate is not None
    for figure in (result.objective, result.lower_bound, result.certificate.optimum_seconds):
        assert figure == pytest.approx(found.seconds, rel=1e-9, abs=0), f"seed {seed}"
    return job.workflow.algorithm


@pytest.mark.parametrize("seed", QUICK_SEEDS)
def test_enumeration_finds_the_same_optimum(seed: int) -> None:
    assert compare(seed)


@pytest.mark.slow
def test_enumeration_finds_the_same_optima_of_every_workflow() -> None:
    seen = []
    for seed in SLOW_SEEDS:
        try:
            seen.append(compare(seed))
        except TooLarge:
            continue
    assert len(seen) >= 20
    assert {"GRPO", "DPO", "RLOO", "infeasible"} <= set(seen), seen
