"""What a search answers: a plan, its estimate, its lower bound, and what was done to find it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hetrl.cost.estimate import Estimate
from hetrl.plan.plan import Plan
from hetrl.search.context import Candidate

if TYPE_CHECKING:
    from hetrl.search.exact.curve import CurvePoint
    from hetrl.search.exact.result import ExactResult


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """A plan, its estimate, and what the search did.

    Parameters
    ----------
    counts
        What was tried: groupings, moves. Equal for equal jobs, seeds and budgets.
    work
        Work done by kind: assignments costed, options evaluated, cuts by reason. Lanes share no memory, so that more
        of them do a little more work for the same result.
    stopped_by_time
        The time limit ended the search before its budget did; such a plan need not be reproducible.
    interrupted
        Ctrl-C ended it.
    runner_up
        The best plan with another grouping, with its estimate; None if there is none.
    objective
        What is minimised, of the plan: seconds or dollars of a step (or period), `hetrl.search.chains.objective_of`.
    lower_bound
        Seconds, or dollars where they are the objective, that no plan's step (or period) can undercut.
    candidate
        The best assignment as the search saw it, before shares were made exact.
    proof
        What the exact solver found; None where the hybrid one searched.
    curve, curve_complete
        Of the exact solver where dollars are the objective: time against money, and whether all of it was looked at.
    """

    plan: Plan
    estimate: Estimate
    objective: float
    counts: dict[str, int] = field(default_factory=dict)
    work: Counter[str] = field(default_factory=Counter)
    stopped_by_time: bool = False
    interrupted: bool = False
    runner_up: tuple[Plan, Estimate] | None = None
    lower_bound: float = 0.0
    candidate: Candidate | None = None
    proof: ExactResult | None = None
    curve: tuple[CurvePoint, ...] = ()
    curve_complete: bool = True

    @property
    def search_cost(self) -> float:
        """Cost of the best assignment as the search saw it."""
        return self.candidate.cost if self.candidate is not None else math.inf

    @property
    def gap(self) -> float:
        """How far the plan may be from the best possible, in what is minimised: ``objective / lower bound - 1``."""
        return self.objective / self.lower_bound - 1.0 if self.lower_bound > 0 else math.inf


def groups_of(plan: Plan) -> frozenset[frozenset[str]]:
    """Tasks that share devices."""
    return frozenset(frozenset(group.tasks) for group in plan.groups)
