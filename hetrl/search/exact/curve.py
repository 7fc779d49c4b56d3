"""Time against money: the fastest plan at every hourly price, by the exact solver (an epsilon-constraint)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from hetrl.cost.evaluate import evaluate
from hetrl.cost.unit import UnitCosts
from hetrl.plan.plan import Plan
from hetrl.search.exact.combining import Incumbent
from hetrl.search.exact.solver import Prover
from hetrl.spec.job import Job

NUM_LIMITS = 6
"""Hourly prices that are looked at above the cheapest plan's, in equal ratios up to the whole fleet's."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """A plan that no plan of the declared space beats in both time and money per step, as far as was looked.

    Parameters
    ----------
    limit_usd_per_hour
        The hourly price that the plan had to keep.
    usd_per_hour, step_seconds, usd_per_step
        Of the plan: price of the devices it uses, seconds per step (the period, if asynchronous), and both multiplied.
    """

    limit_usd_per_hour: float
    usd_per_hour: float
    step_seconds: float
    usd_per_step: float


def price_curve(
    job: Job, costs: UnitCosts, cheapest: Plan, *, gap: float = 0.0, time_limit_seconds: float | None = None
) -> tuple[list[CurvePoint], bool]:
    """Find the fastest plan under rising limits of the hourly price, from that of the cheapest step upwards.

    Parameters
    ----------
    cheapest
        The plan with the cheapest step: the first point.
    gap
        Relative gap in seconds that is good enough.
    time_limit_seconds
        After it, and at Ctrl-C, the points proven so far are returned.

    Returns
    -------
    list
        From the cheapest step to the fastest; each faster and dearer than the one before.
    bool
        Whether all limits were looked at: neither the time limit nor Ctrl-C came first.
    """
    fast = replace(job, optimizer=replace(job.optimizer, objective="step_seconds"))
    prover = Prover(fast, costs, gap=gap, time_limit_seconds=time_limit_seconds, mip=None)
    problem = prover.problem
    points: list[CurvePoint] = []
    try:
        first = point(fast, costs, cheapest, math.inf)
        points.append(replace(first, limit_usd_per_hour=first.usd_per_hour))
        highest = 3600 * float(problem.space.capacity @ problem.usd_per_second)
        incumbent = Incumbent(problem, math.inf)
        prover.offer_plan(cheapest, incumbent)
        incumbent.objective = min(incumbent.objective, first.step_seconds * (1 + 1e-9))
        for number in range(1, NUM_LIMITS + 1):
            limit = first.usd_per_hour * (highest / first.usd_per_hour) ** (number / NUM_LIMITS)
            problem.limit_price(limit / 3600)
            prover.search_partitions(incumbent)
            if prover.timed_out or prover.interrupted or prover.maker.num_overflows:
                return points, False
            if incumbent.placed is None:
                continue
            found = point(fast, costs, incumbent.placed.plan(problem), limit)
            if found.step_seconds < points[-1].step_seconds * (1 - 1e-9):
                while points and points[-1].usd_per_step >= found.usd_per_step:
                    points.pop()
                points.append(found)
        return points, True
    except KeyboardInterrupt:
        return points, False
    finally:
        prover.workers.close()


def point(job: Job, costs: UnitCosts, plan: Plan, limit_usd_per_hour: float) -> CurvePoint:
    """Evaluate a plan."""
    estimate = evaluate(job, plan, costs)
    assert estimate.usd_per_step is not None
    return CurvePoint(
        limit_usd_per_hour=limit_usd_per_hour,
        usd_per_hour=3600 * estimate.usd_per_step / estimate.step_seconds,
        step_seconds=estimate.step_seconds,
        usd_per_step=estimate.usd_per_step,
    )


def curve_of(
    job: Job, costs: UnitCosts, cheapest: Plan, started: float, gap: float
) -> tuple[tuple[CurvePoint, ...], bool]:
    """Return the curve within what is left of the job's time limit, which began at ``started`` (`time.monotonic`)."""
    left = max(0.0, job.optimizer.max_search_seconds - (time.monotonic() - started))
    points, complete = price_curve(job, costs, cheapest, gap=gap, time_limit_seconds=left)
    return tuple(points), complete
