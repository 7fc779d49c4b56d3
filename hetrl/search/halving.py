"""The rounds of the hybrid search: starts, halving over groupings, descent and fine moves, within an `Effort`.

Everything is counted in cost evaluations; the clock only stops the search between items.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hetrl.plan.plan import Plan
from hetrl.search.chains import (
    Chain,
    Descent,
    Start,
    cost_exactly,
    cost_start,
    finish,
    recombine,
    run_chain,
    run_descent,
    run_idling,
)
from hetrl.search.constraints import NodeRules
from hetrl.search.context import Assignment, Candidate, Grouping
from hetrl.search.crew import Alone, Crew
from hetrl.search.level4_assignment import Starts

ALIGNED_STARTS = 4
PROPORTIONAL_SPREADS = (0.0, 0.3, 0.6, 0.9, 1.2)
STARTS_KEPT = 2
"""Of every grouping's starting assignments, those with the best fluid bounds."""
WHOLE_KEPT = 4
"""The same of those that give whole device types."""
MOST_WHOLE_TYPES = 256
"""All ways to give whole device types to groups are starting assignments where there are no more than this."""
NUM_DESCENDED = 3
"""Finalists whose nodes change groups one by one before the fine moves."""
IDLING_DEVICES = 160
"""So many devices have the finalists together that are tried with devices left unused: 8 on guide20, at least one."""
NUM_PLACED = 8
"""Candidates of which whole plans are made, at most."""
PLACED_DEVICES = 2048
"""So many devices have these together, so that large fleets place fewer; at least two."""
PLACED_RATIO = 1.04
"""They cost less than this times the best: exact shares have gained at most 3 %."""
RECOMBINED_DEVICES = 256
"""So many devices have the finalists together whose groups are combined anew: 4 on paper64, at least one anywhere."""
RECOMBINED_TYPES = 16
"""On more device types fronts are too long: every option leaves another one alone (seconds with 40, hours with 60)."""
RECOMBINED_RATIO = 1.15
"""These cost less than this times the best: a tenth has been gained."""
RECOMBINED_PLACED_RATIO = 1.01
"""Those that then cost less than this times the best are placed, too."""
HOPELESS_RATIO = 1.5
"""Starting assignments whose lower bound exceeds this times the best so far are not worked out, nor annealed."""
FINE_GAIN = 4.0
"""Fine moves are given to finalists that cost at most this times a move's share of the devices more than the best."""
FINEST_FRACTION = 512
"""Fine moves move at least this fraction of the devices."""
FIRST_BATCH = 2
"""Starting assignments costed before the first of them sets the cutoff of others."""
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
    descent_moves
        Moves of whole nodes and types per best finalist.
    fine_moves
        Moves per finalist and block size at the end.
    """

    starts: int
    survivors: int
    finalists: int
    first_moves: int
    descent_moves: int
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
            descent_moves=max(80, round(200 * share)),
            fine_moves=max(20, round(120 * share)),
        )


def default_budget(num_devices: int) -> int:
    """Budget where the job names none: smaller for larger fleets, where every evaluation takes longer."""
    return max(300, min(FULL_BUDGET, FULL_BUDGET * FULL_EFFORT_DEVICES // num_devices))


class Halving:
    """The rounds of the search, and what they have spent."""

    def __init__(
        self,
        *,
        crew: Crew,
        rules: NodeRules,
        rng: random.Random,
        deadline: float,
        progress: Callable[[str, float], None] | None,
        effort: Effort,
    ) -> None:
        self.crew = crew
        self.rules = rules
        self.context = rules.context
        self.rng = rng
        self.deadline = deadline
        self.progress = progress
        self.effort = effort
        self.interrupted = False
        self.timed_out = False
        self.best: Candidate | None = None
        self.near: dict[tuple[Grouping, Assignment], Candidate] = {}
        self.num_groupings = 0
        self.spent = 0
        self.moves = [0, 0, 0]
        self.block = max(node.num_devices for node in self.context.topology.nodes)

    def stopped(self) -> bool:
        """Whether the time is over while there was still work to do."""
        self.timed_out = self.timed_out or time.monotonic() > self.deadline
        return self.timed_out

    def may_end(self) -> bool:
        """Whether the time is over and there is a plan to show."""
        return self.stopped() and self.best is not None and self.best.feasible

    def run(self, budget: int, warm_start: Plan | None) -> list[Candidate]:
        """All rounds; the finalists, best first."""
        survivors: list[Candidate] = []
        try:
            if warm_start is not None:
                survivors.extend(self.candidates_of(warm_start))
            survivors = self.start(survivors)
            if not survivors:
                return []  # no assignment obeys the constraints
            survivors = self.halve(survivors, budget)
            return self.exact(self.polish(survivors))
        except KeyboardInterrupt:
            return self.best_at_interrupt()

    def best_at_interrupt(self) -> list[Candidate]:
        """Go on with the best so far and nothing else, in this process; the interrupt goes on if nothing fits yet."""
        if self.interrupted or self.best is None or not self.best.feasible:
            raise KeyboardInterrupt
        self.interrupted = True
        self.near.clear()
        self.crew.close()
        self.crew = Alone(self.rules)
        return self.exact([self.best])

    def exact(self, candidates: list[Candidate]) -> list[Candidate]:
        """Replace costs that are only bounds, best first."""
        homes = [each.grouping for each in candidates]
        costed = self.crew.map(cost_exactly, candidates, homes, never)
        return sorted((each for each in costed if each is not None), key=_cost_of)

    def finish(self, finalists: list[Candidate]) -> list[tuple[Plan, float]]:
        """Plans with costs of the best finalists, of what was seen and costs little more, and of one other grouping.

        Of assignments of one grouping that cost the same, mostly mirror images on equal nodes, one is placed.
        """
        try:
            return self.placed(finalists)
        except KeyboardInterrupt:
            return self.placed(self.best_at_interrupt())

    def placed(self, finalists: list[Candidate]) -> list[tuple[Plan, float]]:
        """See `finish`."""
        known = {(each.grouping, each.cost): each for each in [*self.near.values(), *finalists] if each.feasible}
        ranked = sorted(known.values(), key=_cost_of)
        if not ranked:
            return []
        num_placed = max(2, min(NUM_PLACED, PLACED_DEVICES // self.context.topology.num_devices))
        chosen = [each for each in ranked[:num_placed] if each.cost < PLACED_RATIO * ranked[0].cost]
        if all(each.grouping == chosen[0].grouping for each in chosen):  # the runner-up
            chosen += [each for each in ranked if each.grouping != chosen[0].grouping][:1]
        chosen += self.recombined(finalists, ranked[:1])
        finished = self.crew.map(finish, chosen, [each.grouping for each in chosen], never)
        return [each for each in finished if each is not None]

    def recombined(self, finalists: list[Candidate], best: list[Candidate]) -> list[Candidate]:
        """Return finalists that are the best, or nearly so, with other options of their tasks.

        Parameters
        ----------
        best
            The best candidate that fits, if any does.
        """
        if len(self.context.topology.device_types) > RECOMBINED_TYPES:
            return []
        lowest = min((each.cost for each in best), default=-math.inf)
        tried = dict.fromkeys([*best, *(each for each in finalists if each.cost < RECOMBINED_RATIO * lowest)])
        chosen = list(tried)[: max(1, RECOMBINED_DEVICES // self.context.topology.num_devices)]
        found = self.crew.map(recombine, chosen, [each.grouping for each in chosen], never)
        better = [each for each in found if each is not None and each.recombined]
        lowest = min([lowest, *(each.cost for each in better)])
        return [each for each in better if each.cost < RECOMBINED_PLACED_RATIO * lowest]

    def candidates_of(self, plan: Plan) -> list[Candidate]:
        """Cost a plan's assignment, and those that give the devices it leaves unused to one of its groups; the best."""
        context = self.context
        grouping = tuple(
            tuple(sorted(context.job.workflow.index(name) for name in group.tasks)) for group in plan.groups
        )
        assignment = tuple(context.device_counts(group.devices) for group in plan.groups)
        counts = np.stack([np.frombuffer(key, dtype=np.int32) for key in assignment])
        unused = context.tables.node_devices - counts.sum(axis=0)
        ways = [assignment]
        if unused.any():
            more = [context.counts(row + unused) for row in counts]
            ways += [(*assignment[:number], each, *assignment[number + 1 :]) for number, each in enumerate(more)]
        candidates = [
            Candidate(grouping=grouping, assignment=way, cost=context.steps.cost(grouping, way, math.inf))
            for way in ways
            if all(map(self.rules.admits, grouping, way))
        ]
        for candidate in candidates:
            self.note(candidate)
        return sorted(candidates, key=_cost_of)[:1]

    def groupings(self) -> Iterator[Grouping]:
        """Yield the groupings that the rules admit; with devices to spare where dollars matter."""
        optimizer, num_devices = self.context.job.optimizer, self.context.topology.num_devices
        spare = optimizer.minimises_dollars or optimizer.constraints.max_usd_per_step is not None
        for grouping in self.context.groupings:
            if self.rules.admits_grouping(grouping):
                if len(grouping) <= num_devices:
                    yield grouping
                if spare and len(grouping) < num_devices:
                    yield (*grouping, ())

    def start(self, known: list[Candidate]) -> list[Candidate]:
        """Cost the starting assignments with the best fluid bounds; hopeless ones are left at their bound.

        Between batches the best so far becomes the next batch's cutoff. Batches double, whatever the number of lanes.
        """
        starts = Starts(self.context, self.rng)
        screened: list[tuple[float, int, Grouping, Assignment]] = []
        for grouping in self.groupings():
            self.num_groupings += 1
            drawn = [starts.aligned(len(grouping)) for _ in range(ALIGNED_STARTS)]
            drawn += [starts.proportional(grouping, spread) for spread in PROPORTIONAL_SPREADS]
            whole = starts.whole_types(len(grouping), MOST_WHOLE_TYPES)
            for pool, kept in ((drawn, STARTS_KEPT), (whole, WHOLE_KEPT)):
                repaired = [self.rules.repaired(grouping, each) for each in pool]
                distinct = list(dict.fromkeys(each for each in repaired if each is not None))
                ranked = sorted((self.context.steps.rank(grouping, each), place) for place, each in enumerate(distinct))
                screened.extend((bound, len(screened), grouping, distinct[place]) for bound, place in ranked[:kept])
        chosen = sorted(screened)[: self.effort.starts]
        candidates: dict[Grouping, Candidate] = {candidate.grouping: candidate for candidate in known}
        begin, size = 0, FIRST_BATCH
        while begin < len(chosen) and not self.may_end():
            cutoff = HOPELESS_RATIO * self.best.cost if self.best is not None else math.inf
            batch = [
                Start(grouping=grouping, assignment=start, cutoff=cutoff)
                for _, _, grouping, start in chosen[begin : begin + size]
            ]
            for candidate in self.crew.map(cost_start, batch, [each.grouping for each in batch], self.may_end):
                if candidate is None:
                    continue
                self.spent += 1
                known_cost = candidates[candidate.grouping].cost if candidate.grouping in candidates else math.inf
                if candidate.cost < known_cost:
                    candidates[candidate.grouping] = candidate
                self.note(candidate)
            begin, size = begin + size, 2 * size
        self.report("groupings")
        return sorted(candidates.values(), key=_cost_of)

    def halve(self, survivors: list[Candidate], budget: int) -> list[Candidate]:
        """Anneal all, keep the better half, and give those twice the moves."""
        moves = self.effort.first_moves
        survivors = [
            each
            for rank, each in enumerate(survivors[: self.effort.survivors])
            if rank < self.effort.finalists or each.cost < HOPELESS_RATIO * survivors[0].cost
        ]
        while len(survivors) > self.effort.finalists and self.spent < budget and not self.stopped():
            survivors = self.anneal(survivors, moves, self.block, 0.10, 0.005)
            survivors = survivors[: max(self.effort.finalists, len(survivors) // 2)]
            moves *= 2
            self.report("halving")
        return survivors[: self.effort.finalists]

    def polish(self, survivors: list[Candidate]) -> list[Candidate]:
        """Move whole nodes of the best finalists, then anneal all at low temperature with ever smaller blocks."""
        survivors = self.descend(survivors)
        finest = max(1, self.context.topology.num_devices // FINEST_FRACTION)
        for size in dict.fromkeys((max(finest, self.block // 4), finest)):
            most = (1.0 + FINE_GAIN * size / self.context.topology.num_devices) * survivors[0].cost
            hopeful = [each for each in survivors if each.cost <= most]
            others = survivors[len(hopeful) :]
            survivors = sorted(self.anneal(hopeful, self.effort.fine_moves, size, 0.03, 0.002) + others, key=_cost_of)
        self.report("polish")
        return survivors

    def descend(self, survivors: list[Candidate]) -> list[Candidate]:
        """Move nodes and types of the best finalists that have several groups; all, sorted afterwards."""
        movable = [each for each in survivors if len(each.grouping) > 1]
        survivors = self.moved(survivors, movable[:NUM_DESCENDED], run_descent)
        busy = [each for each in survivors if each.grouping[-1]]  # what fits nowhere may fit on fewer devices
        num_idled = max(1, IDLING_DEVICES // self.context.topology.num_devices)
        return self.moved(survivors, busy[:num_idled], run_idling)

    def moved(
        self,
        survivors: list[Candidate],
        chosen: list[Candidate],
        work: Callable[[NodeRules, Descent], tuple[list[Candidate], int]],
    ) -> list[Candidate]:
        """Survivors with what a kind of moves made of the chosen ones, best first."""
        descents = [
            Descent(candidate=each, num_moves=self.effort.descent_moves, near_ratio=PLACED_RATIO) for each in chosen
        ]
        found = {each.grouping: each for each in survivors}
        for answer in self.crew.map(work, descents, [each.grouping for each in chosen], self.stopped):
            if answer is None:
                continue
            near, spent = answer
            self.spent += spent
            found[near[0].grouping] = near[0]
            for each in near:
                self.note(each)
        return sorted(found.values(), key=_cost_of)

    def anneal(
        self, survivors: list[Candidate], num_moves: int, block: int, start_temperature: float, end_temperature: float
    ) -> list[Candidate]:
        """One round over all survivors, sorted afterwards; a time limit leaves the rest as they are."""
        chains = [
            Chain(
                candidate=candidate,
                seed=self.rng.getrandbits(60),
                num_moves=num_moves,
                block=block,
                start_temperature=start_temperature,
                end_temperature=end_temperature,
            )
            for candidate in survivors
        ]
        annealed = self.crew.map(run_chain, chains, [each.grouping for each in survivors], self.stopped)
        improved = []
        for candidate, answer in zip(survivors, annealed, strict=True):
            if answer is None:
                improved.append(candidate)
                continue
            better, counters = answer
            self.spent += num_moves
            self.moves = [total + more for total, more in zip(self.moves, counters, strict=True)]
            improved.append(better)
            self.note(better)
        return sorted(improved, key=_cost_of)

    def note(self, candidate: Candidate) -> None:
        """Remember the best, and what costs little more."""
        if self.best is None or candidate.cost < PLACED_RATIO * self.best.cost:
            self.near[candidate.grouping, candidate.assignment] = candidate
        if self.best is None or candidate.cost < self.best.cost:
            self.best = candidate

    def report(self, stage: str) -> None:
        """Tell the caller how far the search is."""
        if self.progress is not None and self.best is not None:
            self.progress(stage, self.best.cost)

    def counts(self) -> dict[str, int]:
        """Return what the search tried; the same whatever the lanes."""
        null, proposed, accepted = self.moves
        return {
            "groupings": self.num_groupings,
            "moves": self.spent,
            "moves_null": null,
            "moves_proposed": proposed,
            "moves_accepted": accepted,
        }


def never() -> bool:
    """For work that is done even when the time is over."""
    return False


def _cost_of(candidate: Candidate) -> float:
    return candidate.cost
