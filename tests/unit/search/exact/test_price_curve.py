"""Time against money: points of the curve against proven optima of the two objectives."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.search.exact.curve import price_curve
from hetrl.search.exact.result import ExactResult
from hetrl.search.exact.solver import solve_exact
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values

MODEL = "Qwen2.5-1.5B"
NODES: list[dict[str, Any]] = [
    {"id": "fast", "gpus": 2, "type": "H100", "interconnect": "NVLink-900G", "usd_per_hour": 14.0},
    {"id": "cheap", "gpus": 2, "type": "L40S", "interconnect": "PCIe-Gen4", "usd_per_hour": 4.0},
]


def job_of(nodes: list[dict[str, Any]], objective: str) -> Job:
    workflow = {"algorithm": "GRPO", "actor_model": MODEL, "reference_model": MODEL, "reward_model": MODEL}
    values = {"workflow": workflow, "cluster_topology": {"nodes": nodes}, "optimizer": {"objective": objective}}
    return job_from_values({**values, "batch": {"num_prompts": 16}}, source="curve")


def costs_of(job: Job) -> UnitCosts:
    return UnitCosts(CostModel.builtin(), job.precision)


@pytest.fixture(scope="module")
def jobs() -> tuple[Job, Job]:
    return job_of(NODES, "usd_per_step"), job_of(NODES, "step_seconds")


def test_the_curve_goes_from_the_cheapest_step_to_the_fastest(jobs: tuple[Job, Job]) -> None:
    cheap, fast = (solve_exact(job, costs_of(job)) for job in jobs)
    assert cheap.plan is not None
    points, complete = price_curve(jobs[0], costs_of(jobs[0]), cheap.plan)
    assert complete and len(points) >= 3
    assert points[0].usd_per_step == pytest.approx(cheap.objective, rel=1e-2)  # level 5 may have made it better
    assert points[-1].step_seconds == pytest.approx(fast.objective, rel=1e-9)
    for slower, faster in pairwise(points):
        assert slower.step_seconds > faster.step_seconds and slower.usd_per_step < faster.usd_per_step
    for each in points:
        assert each.usd_per_hour <= each.limit_usd_per_hour * (1 + 1e-9)
        assert each.usd_per_step == pytest.approx(each.usd_per_hour * each.step_seconds / 3600)


@pytest.mark.slow
def test_a_point_is_the_optimum_of_the_fleets_that_its_price_buys(jobs: tuple[Job, Job]) -> None:
    """An independent way to the same figure: prove every sub-fleet that the limit affords."""
    cheap = solve_exact(jobs[0], costs_of(jobs[0]))
    assert cheap.plan is not None
    points, _ = price_curve(jobs[0], costs_of(jobs[0]), cheap.plan)
    prices = {"fast": 7.0, "cheap": 2.0}
    for point in points[1:]:
        best = float("inf")
        for fast in range(3):
            for slow in range(3):
                if not 0 < fast * prices["fast"] + slow * prices["cheap"] <= point.limit_usd_per_hour:
                    continue
                part = solve_exact(jobs[1], costs_of(jobs[1])) if (fast, slow) == (2, 2) else sub_fleet(fast, slow)
                best = min(best, part.objective)
        assert point.step_seconds == pytest.approx(best, rel=1e-9)


def sub_fleet(fast: int, slow: int) -> ExactResult:
    """The optimum that keeps some devices unused: they are not there, but what a node gives its devices is."""
    nodes = [
        {**node, "gpus": count, "usd_per_hour": node["usd_per_hour"] / 2 * count}
        for node, count in zip(NODES, (fast, slow), strict=True)
        if count
    ]
    job = job_of(nodes, "step_seconds")
    return solve_exact(job, costs_of(job))
