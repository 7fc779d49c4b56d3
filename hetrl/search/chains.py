"""Units of the search's work that run in any lane: cost a start, anneal a chain, move nodes, finish a candidate.

Each is a function of a lane's rules (constraints, and through them the job lowered to arrays) and of one small item,
and of nothing else: whichever lane runs it, the answer has the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from hetrl.cost.estimate import Estimate
from hetrl.cost.evaluate import evaluate
from hetrl.plan.plan import Plan
from hetrl.search.constraints import NodeRules
from hetrl.search.context import Assignment, Candidate, Grouping, SearchContext
from hetrl.search.level3_recombine import recombined
from hetrl.search.level4_assignment import idle_moves, node_moves
from hetrl.search.level5_placement import place
from hetrl.search.level5_polish import LoweredPlan, lowered, polish
from hetrl.search.level5_refine import refined
from hetrl.spec.job import Job
from hetrl_kernels.anneal import anneal


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A starting assignment; its cost is worked out only where its lower bound is below the cutoff."""

    grouping: Grouping
    assignment: Assignment
    cutoff: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One annealing run from a candidate; temperatures are relative to the current cost."""

    candidate: Candidate
    seed: int
    num_moves: int
    block: int
    start_temperature: float
    end_temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """Whole nodes and types change groups for as long as that helps.

    Parameters
    ----------
    num_moves
        Assignments costed at most.
    near_ratio
        Assignments that cost less than this times the best are worth keeping.
    """

    candidate: Candidate
    num_moves: int
    near_ratio: float


def cost_start(rules: NodeRules, start: Start) -> Candidate:
    """Cost a start, or leave it at its bound."""
    cost = rules.context.steps.cost(start.grouping, start.assignment, start.cutoff)
    return Candidate(grouping=start.grouping, assignment=start.assignment, cost=cost)


def cost_exactly(rules: NodeRules, candidate: Candidate) -> Candidate:
    """Replace a cost that may be only a bound."""
    return replace(candidate, cost=rules.context.steps.cost(candidate.grouping, candidate.assignment, math.inf))


def run_chain(rules: NodeRules, chain: Chain) -> tuple[Candidate, tuple[int, int, int]]:
    """Anneal; the best candidate seen, and its numbers of null, proposed and accepted moves."""
    context = rules.context
    start = cost_exactly(rules, chain.candidate)
    assignment, cost, counters = anneal(
        context.steps,
        start.grouping,
        start.assignment,
        start.cost,
        context.tables.node_kind,
        seed=chain.seed,
        num_moves=chain.num_moves,
        block=chain.block,
        start_temperature=chain.start_temperature,
        end_temperature=chain.end_temperature,
        fixed=None if rules.free else rules.admits,
    )
    return Candidate(grouping=start.grouping, assignment=assignment, cost=cost), counters


def run_descent(rules: NodeRules, descent: Descent) -> tuple[list[Candidate], int]:
    """Take the first move that helps, again and again; what costs little more, best first, and the number of moves."""
    current = cost_exactly(rules, descent.candidate)
    seen = [current]
    spent = 0
    better = True
    while better:
        better = False
        for assignment in node_moves(rules.context, current.assignment):
            if not all(map(rules.admits, current.grouping, assignment)):
                continue
            if spent == descent.num_moves:
                break
            spent += 1
            cost = rules.context.steps.cost(current.grouping, assignment, descent.near_ratio * current.cost)
            moved = replace(current, assignment=assignment, cost=cost)
            if cost < descent.near_ratio * current.cost:  # else the cost may be only a bound
                seen.append(moved)
            if cost < current.cost:
                current, better = moved, True
                break
    near = {each.assignment: each for each in seen if each.cost < descent.near_ratio * current.cost}
    return sorted(near.values(), key=lambda each: each.cost), spent


def run_idling(rules: NodeRules, descent: Descent) -> tuple[list[Candidate], int]:
    """Leave devices unused where groups are faster without them; as `run_descent`."""
    start = cost_exactly(rules, descent.candidate)
    best, spent = start, 0
    grouping = (*start.grouping, ())
    for assignment in idle_moves(rules.context, start.assignment):
        if spent == descent.num_moves:
            break
        spent += 1
        cost = rules.context.steps.cost(grouping, assignment, best.cost)
        if cost < best.cost:
            best = Candidate(grouping=grouping, assignment=assignment, cost=cost)
    if best is start:
        return [start], spent
    near, more = run_descent(rules, replace(descent, candidate=best, num_moves=descent.num_moves - spent))
    return near, spent + more


def recombine(rules: NodeRules, candidate: Candidate) -> Candidate:
    """Combine the options of a candidate's groups anew."""
    return recombined(rules.context, candidate)


def finish(rules: NodeRules, candidate: Candidate) -> tuple[Plan, float]:
    """Place a candidate with shares as costed and with exact ones; improve the better plan. The plan and its cost."""
    return improved(rules, [place(rules, candidate, exact_shares=exact) for exact in (True, False)])


def improved(rules: NodeRules, plans: Sequence[Plan]) -> tuple[Plan, float]:
    """Level 5 of the best of some placed plans: annealed blocks, layers and shares split anew, as far as that helps.

    The plan and its cost, which is what `objective_of` says of it to 1e-12.
    """
    seed = rules.context.job.optimizer.seed
    best = min((_Placed.of(rules.context, plan) for plan in dict.fromkeys(plans)), key=attrgetter("cost"))
    if math.isfinite(best.cost):
        best = best.polished(rules, seed)
        for split_layers in (True, False):
            plan = refined(rules, best.plan, split_layers=split_layers)
            if plan == best.plan:
                break  # then shares alone change nothing either
            refined_plan = _Placed.of(rules.context, plan)
            if refined_plan.cost < best.cost:
                best = refined_plan
                break
    return best.plan, best.cost


@dataclass(frozen=True, slots=True)
class _Placed:
    """A plan with its cost, and lowered if the kernel gave the cost."""

    plan: Plan
    cost: float
    lowered: LoweredPlan | None

    @classmethod
    def of(cls, context: SearchContext, plan: Plan) -> _Placed:
        job = context.job
        known = lowered(context, plan)
        if known is None or job.optimizer.minimises_dollars:
            return cls(plan, objective_of(job, evaluate(job, plan, context.costs)), known)
        return cls(plan, known.seconds, known)

    def polished(self, rules: NodeRules, seed: int) -> _Placed:
        if self.lowered is None:
            return self
        better = polish(rules, self.lowered, seed)
        if better is self.lowered:
            return self
        if rules.context.job.optimizer.minimises_dollars:
            return min(self, _Placed.of(rules.context, better.plan), key=attrgetter("cost"))
        return _Placed(better.plan, better.seconds, better)


def objective_of(job: Job, estimate: Estimate) -> float:
    """Return what the job minimises: dollars or seconds of a step (or period); infinite for an infeasible plan."""
    if not job.optimizer.minimises_dollars:
        return estimate.step_seconds
    return estimate.usd_per_step if estimate.usd_per_step is not None else math.inf
