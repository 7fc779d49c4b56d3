"""Which solver answers a job: ``optimizer.solver``."""

from __future__ import annotations

from collections.abc import Callable

from hetrl.cost.unit import UnitCosts
from hetrl.errors import NotSupported, Problem
from hetrl.plan.plan import Plan
from hetrl.search import hybrid
from hetrl.search.hybrid import SearchResult
from hetrl.spec.job import Job


def solve(
    job: Job,
    costs: UnitCosts,
    *,
    progress: Callable[[str, float], None] | None = None,
    warm_start: Plan | None = None,
    threads: int = 1,
    ray_address: str | None = None,
) -> SearchResult:
    """Solve with the solver that the job names; parameters and errors as of `hetrl.search.hybrid.solve`."""
    if job.optimizer.solver == "ilp":
        raise NotSupported(
            Problem(path="optimizer.solver", message="NotSupported: the exact solver", found="ilp", valid="hybrid")
        )
    return hybrid.solve(job, costs, progress=progress, warm_start=warm_start, threads=threads, ray_address=ray_address)
