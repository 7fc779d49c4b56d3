"""Which solver answers a job: ``optimizer.solver``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from hetrl.cost.unit import UnitCosts
from hetrl.errors import InfeasibleError, Problem, SpecError
from hetrl.plan.capabilities import unsupported_job, unsupported_tasks
from hetrl.plan.plan import Plan
from hetrl.search import hybrid
from hetrl.search.chains import objective_of
from hetrl.search.result import SearchResult
from hetrl.spec.job import Job


def solve(
    job: Job,
    costs: UnitCosts,
    *,
    progress: Callable[[str, float], None] | None = None,
    bound_progress: Callable[[float, float, float], None] | None = None,
    warm_start: Plan | None = None,
    threads: int | None = None,
    ray_address: str | None = None,
) -> SearchResult:
    """Solve with the solver that the job names.

    Parameters
    ----------
    bound_progress
        Called with (lower bound, best so far, gap) by the exact solver; the other parameters, and the errors, are those
        of `hetrl.search.hybrid.solve`.
    threads
        Processes; None for the solver's own choice: one for the hybrid solver, one per core for the exact one.
    ray_address
        The hybrid solver's.

    Raises
    ------
    SpecError
        Before any search, if only plans that this version can launch are wanted and no plan of the job, or not the one
        to start from, is one.
    """
    if job.optimizer.executable:
        refuse_unlaunchable(job, warm_start)
    if job.optimizer.solver == "ilp":
        if ray_address is not None:
            raise SpecError(
                Problem(path="--ray", message="the exact solver runs on one machine", valid="solver: hybrid")
            )
        return _exact(job, costs, bound_progress, warm_start, threads)
    lanes = 1 if threads is None else threads
    return hybrid.solve(job, costs, progress=progress, warm_start=warm_start, threads=lanes, ray_address=ray_address)


def refuse_unlaunchable(job: Job, warm_start: Plan | None) -> None:
    """Refuse what the runtime cannot carry out whichever plan is found; what plans may ask for, level 2 leaves out."""
    problems = unsupported_job(job)
    if warm_start is not None:
        problems += [replace(each, path=f"--warm-start: {each.path}") for each in unsupported_tasks(job, warm_start)]
    if problems:
        wish = Problem(
            path="optimizer.executable",
            message="this version can launch no plan of this job, for the reasons below",
            found="true",
            valid="false, which plans what cannot be launched yet and says why",
        )
        raise SpecError([wish, *problems])


def _exact(
    job: Job,
    costs: UnitCosts,
    progress: Callable[[float, float, float], None] | None,
    warm_start: Plan | None,
    threads: int | None,
) -> SearchResult:
    from hetrl.search.exact.curve import CurvePoint, curve_of
    from hetrl.search.exact.solver import solve_exact

    settings = job.optimizer
    started = time.monotonic()
    proof = solve_exact(
        job,
        costs,
        gap=settings.gap,
        time_limit_seconds=settings.max_search_seconds,
        mip=settings.mip,
        progress=progress,
        warm_start=warm_start,
        threads=threads,
    )
    if proof.plan is None or proof.estimate is None:
        raise InfeasibleError(f"proven in the declared space: {proof.message}", list(proof.reasons))
    curve: tuple[CurvePoint, ...] = ()
    complete = True
    if settings.minimises_dollars and proof.status == "optimal" and not proof.interrupted:
        curve, complete = curve_of(job, costs, proof.plan, started, settings.gap)
    return SearchResult(
        plan=proof.plan,
        estimate=proof.estimate,
        counts=dict(proof.counts),
        stopped_by_time=proof.stopped_by_time,
        interrupted=proof.interrupted,
        objective=(objective := objective_of(job, proof.estimate)),
        lower_bound=min(proof.lower_bound, objective),
        proof=proof,
        curve=curve,
        curve_complete=complete,
    )
