"""The hybrid solver: levels 1-3 prune, levels 4-5 anneal, successive halving spends the budget over groupings.

Everything is counted in cost evaluations, never by the clock, so that equal input, seed and budget give equal plans;
the time limit only stops the search between rounds, and a search that it stopped says so.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hetrl.cost.estimate import Estimate
from hetrl.cost.evaluate import evaluate
from hetrl.cost.unit import UnitCosts
from hetrl.errors import InfeasibleError
from hetrl.plan.plan import Plan
from hetrl.search.bounds import lower_bound
from hetrl.search.constraints import Constraints, NodeRules
from hetrl.search.context import Assignment, Candidate, Grouping, SearchContext
from hetrl.search.infeasible import explain_infeasible
from hetrl.search.level1_grouping import groupings
from hetrl.search.level4_assignment import Starts, as_assignment
from hetrl.search.level5_placement import place
from hetrl.spec.job import Job
from hetrl_kernels.anneal import anneal

ALIGNED_STARTS = 4
PROPORTIONAL_SPREADS = (0.0, 0.3, 0.6, 0.9, 1.2)
STARTS_KEPT = 2
"""Of every grouping's starting assignments, those with the best fluid bounds."""
NUM_PLACED = 4
"""Finalists of which whole plans are made and evaluated."""
HOPELESS_RATIO = 1.5
"""Starting assignments whose lower bound exceeds this times the best so far are not worked out."""
FULL_BUDGET = 6_000
"""Assignments proposed by a search at full effort: `Effort` scales with the budget relative to this."""
FULL_EFFORT_DEVICES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much each part of the search may do.

    Parameters
    ----------
    starts
        Starting assignments costed.
    survivors
        Groupings that are annealed at all.
    finalists
        Groupings that halving leaves over.
    first_moves
        Moves per survivor in the first round of halving; twice as many in each that follows.
    fine_moves
        Moves per finalist and block size at the end.
    """

    starts: int
    survivors: int
    finalists: int
    first_moves: int
    fine_moves: int

    @classmethod
    def of_budget(cls, budget: int) -> Effort:
        """Shares of a budget of proposed assignments."""
        share = budget / FULL_BUDGET
        return cls(
            starts=max(24, round(400 * share)),
            survivors=max(6, round(64 * share)),
            finalists=max(4, min(16, round(8 * share))),
            first_moves=max(6, round(6 * share)),
            fine_moves=max(20, round(120 * share)),
        )


def default_budget(num_devices: int) -> int:
    """Budget where the job names none: smaller for larger fleets, where every evaluation takes longer."""
    return max(300, min(FULL_BUDGET, FULL_BUDGET * FULL_EFFORT_DEVICES // num_devices))


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """A plan, its estimate, and what the search did.

    Parameters
    ----------
    counts
        Work by kind: groupings, assignments costed, task options evaluated, cuts by reason.
    stopped_by_time
        The time limit ended the search before its budget did; such a plan need not be reproducible.
    interrupted
        Ctrl-C ended it.
    runner_up
        The best plan with another grouping, with its estimate; None if there is none.
    lower_bound
        Seconds that no plan's step (or period) can undercut.
    search_cost
        Cost of the best assignment as the search saw it, before shares were made exact.
    """

    plan: Plan
    estimate: Estimate
    counts: dict[str, int] = field(default_factory=dict)
    stopped_by_time: bool = False
    interrupted: bool = False
    runner_up: tuple[Plan, Estimate] | None = None
    lower_bound: float = 0.0
    search_cost: float = math.inf

    @property
    def gap(self) -> float:
        """How far the plan's step time may be from the best possible: ``step / lower bound - 1``."""
        return self.estimate.step_seconds / self.lower_bound - 1.0 if self.lower_bound > 0 else math.inf


def solve(
    job: Job,
    costs: UnitCosts,
    *,
    progress: Callable[[str, float], None] | None = None,
    warm_start: Plan | None = None,
    constraints: Constraints | None = None,
) -> SearchResult:
    """Search all five levels.

    Parameters
    ----------
    progress
        Called with (stage, best cost so far).
    warm_start
        A plan of the same job to start from; the answer is never worse than it.
    constraints
        What plans may not do.

    Raises
    ------
    InfeasibleError
        If no candidate fits, with the binding limit and the smallest changes that would help.

    Notes
    -----
    Ctrl-C ends the search and gives the best plan so far; if there is none yet, `KeyboardInterrupt` goes on.
    """
    deadline = time.monotonic() + job.optimizer.max_search_seconds
    context = SearchContext(job, costs)
    budget = job.optimizer.budget or default_budget(job.topology.num_devices)
    search = _Search(
        context=context,
        rng=random.Random(job.optimizer.seed),
        deadline=deadline,
        progress=progress,
        effort=Effort.of_budget(budget),
        rules=NodeRules(context, constraints or Constraints()),
    )
    finalists = search.run(budget, warm_start)
    finished = [_finish(context, candidate) for candidate in finalists[:NUM_PLACED] if candidate.feasible]
    if warm_start is not None:
        finished.append((warm_start, evaluate(job, warm_start, costs)))
    limit = constraints.max_usd_per_step if constraints is not None else None
    finished = [
        (plan, estimate)
        for plan, estimate in finished
        if estimate.feasible
        and (limit is None or (estimate.usd_per_step is not None and estimate.usd_per_step <= limit))
    ]
    if not finished:
        message, reasons = explain_infeasible(context)
        if limit is not None:
            reasons = [*reasons, f"constraint: at most {limit:g} $ per step"]
        raise InfeasibleError(message, reasons)
    finished.sort(key=lambda pair: _objective(job, pair[1]))
    plan, estimate = finished[0]
    return SearchResult(
        plan=plan,
        estimate=estimate,
        counts=search.counts(),
        stopped_by_time=search.timed_out,
        interrupted=search.interrupted,
        runner_up=next((pair for pair in finished if groups_of(pair[0]) != groups_of(plan)), None),
        lower_bound=lower_bound(job, context.tables, context.fluid),
        search_cost=min((candidate.cost for candidate in finalists), default=math.inf),
    )


class _Search:
    """The rounds of the search, and what they have spent."""

    def __init__(
        self,
        *,
        context: SearchContext,
        rng: random.Random,
        deadline: float,
        progress: Callable[[str, float], None] | None,
        effort: Effort,
        rules: NodeRules,
    ) -> None:
        self.context = context
        self.rng = rng
        self.deadline = deadline
        self.progress = progress
        self.effort = effort
        self.rules = rules
        self.interrupted = False
        self.timed_out = False
        self.best: Candidate | None = None
        self.num_groupings = 0
        self.spent = 0
        self.moves = [0, 0, 0]
        largest = max(node.num_devices for node in context.topology.nodes)
        self.block = max(1, largest // 2)

    @property
    def stopped(self) -> bool:
        """Whether the time is over while there was still work to do."""
        self.timed_out = self.timed_out or time.monotonic() > self.deadline
        return self.timed_out

    def run(self, budget: int, warm_start: Plan | None) -> list[Candidate]:
        """All rounds; the finalists, best first."""
        survivors: list[Candidate] = []
        try:
            if warm_start is not None:
                survivors.append(self.candidate_of(warm_start))
            survivors = self.start(survivors)
            survivors = self.halve(survivors, budget)
            return self.exact(self.polish(survivors))
        except KeyboardInterrupt:
            if self.best is None or not self.best.feasible:
                raise
            self.interrupted = True
            return self.exact([self.best])

    def exact(self, candidates: list[Candidate]) -> list[Candidate]:
        """Replace costs that are only bounds, best first."""
        costed = [
            replace(each, cost=self.context.steps.cost(each.grouping, each.assignment, math.inf)) for each in candidates
        ]
        return sorted(costed, key=_cost_of)

    def candidate_of(self, plan: Plan) -> Candidate:
        """Read a plan's grouping and assignment, and cost them."""
        workflow, topology = self.context.job.workflow, self.context.topology
        grouping = tuple(tuple(sorted(workflow.index(name) for name in group.tasks)) for group in plan.groups)
        counts = [[0] * len(topology.nodes) for _ in plan.groups]
        for row, group in zip(counts, plan.groups, strict=True):
            for device in group.devices:
                row[topology.devices[device].node] += 1
        assignment = as_assignment(counts)
        candidate = Candidate(
            grouping=grouping, assignment=assignment, cost=self.context.steps.cost(grouping, assignment, math.inf)
        )
        self.note(candidate)
        return candidate

    def start(self, known: list[Candidate]) -> list[Candidate]:
        """Cost the starting assignments with the best fluid bounds; hopeless ones are left at their bound."""
        context = self.context
        starts = Starts(context, self.rng)
        screened: list[tuple[float, int, Grouping, Assignment]] = []
        for grouping in groupings([task.kind for task in context.job.workflow.tasks]):
            if len(grouping) > context.topology.num_devices:
                continue
            self.num_groupings += 1
            drawn = [starts.aligned(len(grouping)) for _ in range(ALIGNED_STARTS)]
            drawn += [starts.proportional(grouping, spread) for spread in PROPORTIONAL_SPREADS]
            repaired = [self.rules.repaired(grouping, each) for each in drawn]
            drawn = list(dict.fromkeys(each for each in repaired if each is not None))
            ranked = sorted((context.steps.rank(grouping, start), number) for number, start in enumerate(drawn))
            screened.extend((bound, len(screened), grouping, drawn[number]) for bound, number in ranked[:STARTS_KEPT])
        candidates: dict[Grouping, Candidate] = {candidate.grouping: candidate for candidate in known}
        for _, _, grouping, start in sorted(screened)[: self.effort.starts]:
            cutoff = HOPELESS_RATIO * self.best.cost if self.best is not None else math.inf
            candidate = Candidate(grouping=grouping, assignment=start, cost=context.steps.cost(grouping, start, cutoff))
            self.spent += 1
            if grouping not in candidates or candidate.cost < candidates[grouping].cost:
                candidates[grouping] = candidate
            self.note(candidate)
            if self.stopped and self.best is not None and self.best.feasible:
                break
        self.report("groupings")
        return sorted(candidates.values(), key=_cost_of)

    def halve(self, survivors: list[Candidate], budget: int) -> list[Candidate]:
        """Anneal all, keep the better half, and give those twice the moves."""
        moves = self.effort.first_moves
        survivors = survivors[: self.effort.survivors]
        while len(survivors) > self.effort.finalists and self.spent < budget and not self.stopped:
            survivors = self.anneal(survivors, moves, self.block, 0.10, 0.005)
            survivors = survivors[: max(self.effort.finalists, len(survivors) // 2)]
            moves *= 2
            self.report("halving")
        return survivors[: self.effort.finalists]

    def polish(self, survivors: list[Candidate]) -> list[Candidate]:
        """Anneal the finalists at low temperature with ever smaller blocks."""
        for size in dict.fromkeys((max(1, self.block // 2), 1)):
            survivors = self.anneal(survivors, self.effort.fine_moves, size, 0.03, 0.002)
        self.report("polish")
        return survivors

    def anneal(
        self, survivors: list[Candidate], num_moves: int, block: int, start_temperature: float, end_temperature: float
    ) -> list[Candidate]:
        """One round over all survivors, sorted afterwards; a time limit leaves the rest as they are."""
        improved = []
        for candidate in survivors:
            if self.stopped:
                improved.append(candidate)
                continue
            exact = self.context.steps.cost(
                candidate.grouping, candidate.assignment, math.inf
            )  # it may be a bound so far
            assignment, cost, counters = anneal(
                self.context.steps,
                candidate.grouping,
                candidate.assignment,
                exact,
                self.context.tables.node_kind,
                seed=self.rng.getrandbits(60),
                num_moves=num_moves,
                block=block,
                start_temperature=start_temperature,
                end_temperature=end_temperature,
                fixed=None if self.rules.free else self.rules.admits,
            )
            self.spent += num_moves
            self.moves = [total + more for total, more in zip(self.moves, counters, strict=True)]
            improved.append(Candidate(grouping=candidate.grouping, assignment=assignment, cost=cost))
            self.note(improved[-1])
        return sorted(improved, key=_cost_of)

    def note(self, candidate: Candidate) -> None:
        """Remember the best."""
        if self.best is None or candidate.cost < self.best.cost:
            self.best = candidate

    def report(self, stage: str) -> None:
        """Tell the caller how far the search is."""
        if self.progress is not None and self.best is not None:
            self.progress(stage, self.best.cost)

    def counts(self) -> dict[str, int]:
        """Work by kind, cuts by reason."""
        steps, finder = self.context.steps, self.context.finder
        null, proposed, accepted = self.moves
        return {
            "groupings": self.num_groupings,
            "assignments_costed": steps.num_costed,
            "groups_combined": steps.num_combined,
            "options_bounded": finder.num_candidates,
            "options_costed": finder.num_costed,
            "moves": self.spent,
            "moves_null": null,
            "moves_proposed": proposed,
            "moves_accepted": accepted,
            **{f"cut_{reason}": number for reason, number in sorted(finder.cuts.items())},
        }


def _cost_of(candidate: Candidate) -> float:
    return candidate.cost


def groups_of(plan: Plan) -> frozenset[frozenset[str]]:
    """Tasks that share devices."""
    return frozenset(frozenset(group.tasks) for group in plan.groups)


def _objective(job: Job, estimate: Estimate) -> float:
    if job.optimizer.objective == "usd_per_step" and estimate.usd_per_step is not None and estimate.feasible:
        return estimate.usd_per_step
    return estimate.step_seconds


def _finish(context: SearchContext, candidate: Candidate) -> tuple[Plan, Estimate]:
    """Place a candidate in every way level 5 knows, and keep the best: shares costed or exact, slots swapped or not."""
    seed = context.job.optimizer.seed
    plans = [place(context, candidate, exact_shares=exact) for exact in (True, False)]
    plans += [place(context, candidate, exact_shares=exact, swap_seed=seed) for exact in (True, False)]
    distinct = [plan for number, plan in enumerate(plans) if plan not in plans[:number]]
    evaluated = [(plan, evaluate(context.job, plan, context.costs)) for plan in distinct]
    return min(evaluated, key=lambda pair: _objective(context.job, pair[1]))
