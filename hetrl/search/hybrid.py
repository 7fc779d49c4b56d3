"""The hybrid solver: levels 1-3 prune, levels 4-5 anneal, successive halving spends the budget over groupings.

Everything is counted in cost evaluations, never by the clock, so that equal input, seed and budget give equal plans;
the time limit only stops the search between rounds, and a search that it stopped says so.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hetrl.cost.estimate import Estimate
from hetrl.cost.evaluate import evaluate
from hetrl.cost.unit import UnitCosts
from hetrl.errors import InfeasibleError
from hetrl.plan.plan import Plan
from hetrl.search.context import SearchContext
from hetrl.search.infeasible import explain_infeasible
from hetrl.search.level1_grouping import set_partitions
from hetrl.search.level4_assignment import AssignmentCost, Candidate, aligned_assignment, anneal
from hetrl.search.level5_placement import place, rebalance
from hetrl.spec.job import Job

COMPOSITIONS_PER_GROUPING = 3
FIRST_ROUND_MOVES = 6
FINE_MOVES = 120
NUM_FINALISTS = 4
HOPELESS_RATIO = 1.5
"""Starting assignments whose lower bound exceeds this times the best so far are not worked out."""
DEFAULT_BUDGET = 6_000


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """A plan, its estimate, and what the search did.

    Parameters
    ----------
    counts
        Work by kind: groupings, assignments costed, task options evaluated, cuts by reason.
    stopped_by_time
        The time limit ended the search before its budget did; such a plan need not be reproducible.
    runner_up
        The best plan with another grouping, with its estimate; None if there is none.
    """

    plan: Plan
    estimate: Estimate
    counts: dict[str, int] = field(default_factory=dict)
    stopped_by_time: bool = False
    runner_up: tuple[Plan, Estimate] | None = None


def solve(
    job: Job, costs: UnitCosts, *, progress: Callable[[str, float], None] | None = None
) -> SearchResult:
    """Search all five levels.

    Parameters
    ----------
    progress
        Called with (stage, best cost so far).

    Raises
    ------
    InfeasibleError
        If no candidate fits, with the binding limit and the smallest changes that would help.
    """
    deadline = time.monotonic() + job.optimizer.max_search_seconds
    context = SearchContext(job, costs)
    cost = AssignmentCost(context)
    rng = random.Random(job.optimizer.seed)
    budget = job.optimizer.budget or DEFAULT_BUDGET
    best: Candidate | None = None
    stopped = False

    def report(stage: str) -> None:
        if progress is not None and best is not None:
            progress(stage, best.cost)

    survivors: list[Candidate] = []
    names = [task.name for task in job.workflow.tasks]
    groupings = [each for each in set_partitions(names) if len(each) <= job.topology.num_devices]
    for grouping in groupings:
        starts = [aligned_assignment(context, len(grouping), rng) for _ in range(COMPOSITIONS_PER_GROUPING)]
        cutoff = HOPELESS_RATIO * best.cost if best is not None else math.inf
        candidates = [
            Candidate(grouping=grouping, assignment=start, cost=cost.cost(grouping, start, cutoff=cutoff))
            for start in dict.fromkeys(starts)
        ]
        survivors.append(min(candidates, key=lambda candidate: candidate.cost))
        best = min(filter(None, (best, survivors[-1])), key=lambda candidate: candidate.cost)
        if time.monotonic() > deadline:
            stopped = True
            break
    report("groupings")

    block = _coarse_block(job)
    moves = FIRST_ROUND_MOVES
    spent = len(groupings) * COMPOSITIONS_PER_GROUPING
    while len(survivors) > NUM_FINALISTS and spent < budget and not stopped:
        for number, candidate in enumerate(survivors):
            survivors[number] = anneal(cost, candidate, rng, num_moves=moves, block=block)
            if time.monotonic() > deadline:
                stopped = True
                break
        spent += moves * len(survivors)
        survivors.sort(key=lambda candidate: candidate.cost)
        survivors = survivors[: max(NUM_FINALISTS, len(survivors) // 2)]
        best = survivors[0]
        moves *= 2
        report("halving")
    for size in (max(1, block // 2), 1):
        for number, candidate in enumerate(survivors[:NUM_FINALISTS]):
            if stopped or time.monotonic() > deadline:
                stopped = True
                break
            survivors[number] = anneal(
                cost, candidate, rng, num_moves=FINE_MOVES, block=size, start_temperature=0.03, end_temperature=0.002
            )
            spent += FINE_MOVES
    survivors.sort(key=lambda candidate: candidate.cost)
    report("polish")

    feasible = [candidate for candidate in survivors if candidate.feasible]
    if not feasible:
        raise InfeasibleError(*explain_infeasible(context, cost.colocation))
    finished = sorted(
        (_finish(context, cost, candidate) for candidate in feasible[:NUM_FINALISTS]),
        key=lambda pair: _objective(job, pair[1]),
    )
    plan, estimate = finished[0]
    if not estimate.feasible:
        raise InfeasibleError(*explain_infeasible(context, cost.colocation))
    return SearchResult(
        plan=plan,
        estimate=estimate,
        counts={
            "groupings": len(groupings),
            "assignments_costed": cost.num_costed,
            "task_options_evaluated": context.counts.evaluations,
            "moves": spent,
            **{f"cut_{reason}": number for reason, number in sorted(context.counts.cuts.items())},
        },
        stopped_by_time=stopped,
        runner_up=finished[1] if len(finished) > 1 else None,
    )


def _objective(job: Job, estimate: Estimate) -> float:
    if job.optimizer.objective == "usd_per_step" and estimate.usd_per_step is not None and estimate.feasible:
        return estimate.usd_per_step
    return estimate.step_seconds


def _finish(context: SearchContext, cost: AssignmentCost, candidate: Candidate) -> tuple[Plan, Estimate]:
    choices = [choice for choice in cost.choices(candidate.grouping, candidate.assignment) if choice is not None]
    plan = place(context, candidate.grouping, candidate.assignment, choices)
    estimate = evaluate(context.job, plan, context.costs)
    rebalanced = rebalance(context, plan)
    better = evaluate(context.job, rebalanced, context.costs)
    if better.feasible and better.step_seconds <= estimate.step_seconds:
        return rebalanced, better
    return plan, estimate


def _coarse_block(job: Job) -> int:
    largest = max(node.num_devices for node in job.topology.nodes)
    return max(1, largest // 2)
