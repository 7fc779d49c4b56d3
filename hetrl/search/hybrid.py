"""The hybrid solver: levels 1-3 prune, levels 4-5 anneal, successive halving spends the budget over groupings.

Everything is counted in cost evaluations, never by the clock, so that equal input, seed and budget give equal plans;
the time limit only stops the search between rounds, and a search that it stopped says so.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from hetrl.cost.estimate import Estimate
from hetrl.cost.evaluate import evaluate
from hetrl.cost.tables import CostTables
from hetrl.cost.unit import UnitCosts
from hetrl.errors import InfeasibleError
from hetrl.plan.plan import Plan
from hetrl.search.beside import Beside
from hetrl.search.bounds import FluidBounds, dollar_bound, lower_bound
from hetrl.search.chains import objective_of
from hetrl.search.constraints import NodeRules
from hetrl.search.context import SearchContext
from hetrl.search.crew import Alone, Crew
from hetrl.search.halving import Effort, Halving, default_budget
from hetrl.search.infeasible import explain_infeasible
from hetrl.search.result import SearchResult, groups_of
from hetrl.spec.job import Job


def solve(
    job: Job,
    costs: UnitCosts,
    *,
    progress: Callable[[str, float], None] | None = None,
    warm_start: Plan | None = None,
    threads: int = 1,
    ray_address: str | None = None,
    context: SearchContext | None = None,
    explain: bool = True,
) -> SearchResult:
    """Search all five levels.

    Parameters
    ----------
    job
        With the objective, constraints, seed, budget and time limit in ``job.optimizer``.
    progress
        Called with (stage, best cost so far).
    warm_start
        A plan of the same job to start from; the answer is never worse than it, unless it violates a constraint.
    threads
        Lanes that chains run in; each is a process where there are several. The plan does not depend on it.
    ray_address
        Run the lanes on a Ray cluster: its address, ``auto``, or empty for Ray on this machine. ``threads`` above 1
        then limits their number.
    context
        The job's arrays and choices, if they exist already or differ from the usual ones.
    explain
        False if nobody reads why nothing fits, which takes some more searches to say.

    Raises
    ------
    InfeasibleError
        If no candidate fits, with the binding limit and the smallest changes that would help.

    Notes
    -----
    Ctrl-C ends the search and gives the best plan so far; if there is none yet, `KeyboardInterrupt` goes on. The lower
    bound of a search that is interrupted while it is worked out is 0: unknown.
    """
    deadline = time.monotonic() + job.optimizer.max_search_seconds
    context = context or SearchContext(job, costs)
    rules = NodeRules(context, warm_start)
    budget = job.optimizer.budget or default_budget(job.topology.num_devices)
    tables, fluid = context.tables, context.fluid
    with Beside(lambda: objective_bound(job, tables, fluid)) as bound:
        with crew_of(rules, threads, ray_address) as crew:
            search = Halving(
                crew=crew,
                rules=rules,
                rng=random.Random(job.optimizer.seed),
                deadline=deadline,
                progress=progress,
                effort=Effort.of_budget(budget),
            )
            finalists = search.run(budget, warm_start)
            finished = search.finish(finalists)
        if warm_start is not None and rules.admits_plan(warm_start):
            finished.append((warm_start, objective_of(job, evaluate(job, warm_start, costs))))
        answers = best_plans(job, costs, finished)
        if not answers:
            raise InfeasibleError(*(explain_infeasible(context, warm_start) if explain else ("no plan fits", [])))
        plan, estimate = answers[0]
        try:
            lowest = bound.result()
        except KeyboardInterrupt:
            search.interrupted, lowest = True, 0.0
        return SearchResult(
            plan=plan,
            estimate=estimate,
            counts=search.counts(),
            work=context.work() + crew.work,
            stopped_by_time=search.timed_out,
            interrupted=search.interrupted,
            runner_up=answers[1] if len(answers) > 1 else None,
            objective=objective_of(job, estimate),
            lower_bound=lowest,
            candidate=min(finalists, key=lambda each: each.cost, default=None),
        )


def objective_bound(job: Job, tables: CostTables, fluid: FluidBounds) -> float:
    """Return seconds, or dollars where they are the objective, that no plan can undercut."""
    seconds = lower_bound(job, tables, fluid)
    return dollar_bound(tables, fluid, seconds) if job.optimizer.minimises_dollars else seconds


def best_plans(job: Job, costs: UnitCosts, finished: list[tuple[Plan, float]]) -> list[tuple[Plan, Estimate]]:
    """Evaluate the best plan that fits and is not too dear, and the best of those with another grouping."""
    limit = job.optimizer.constraints.max_usd_per_step
    answers: list[tuple[Plan, Estimate]] = []
    for plan, cost in sorted(finished, key=_cost_of):
        if math.isinf(cost) or (answers and groups_of(plan) == groups_of(answers[0][0])):
            continue
        estimate = evaluate(job, plan, costs)
        dear = limit is not None and (estimate.usd_per_step is None or estimate.usd_per_step > limit)
        if estimate.feasible and not dear:
            answers.append((plan, estimate))
        if len(answers) == 2:
            break
    return answers


def _cost_of(pair: tuple[Plan, float]) -> float:
    return pair[1]


def crew_of(rules: NodeRules, threads: int, ray_address: str | None) -> AbstractContextManager[Crew]:
    """Lanes as asked for."""
    if ray_address is not None:
        from hetrl.search.ray_crew import RayCrew  # Ray is an extra, and takes a second to import

        return RayCrew(rules, ray_address, threads if threads > 1 else 0)
    if threads > 1:
        from hetrl.search.process_crew import Processes

        return Processes(threads, rules)
    return Alone(rules)
