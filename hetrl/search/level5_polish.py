"""Level 5, second half: whole plans are annealed block by block, across tasks and groups; what gets better is kept.

Levels 1 to 4 cost every task on node counts; here the objective is the step itself, with the links, hosts and schedules
that result. Blocks change places inside groups, and between groups where the user's constraints allow it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hetrl.plan.plan import Plan
from hetrl.search.constraints import NodeRules
from hetrl.search.context import SearchContext
from hetrl.search.plan_arrays import PlanArrays, moved_plan, plan_arrays
from hetrl_kernels.plan_anneal import PlanAnnealer

NUM_MOVES = 20_000
"""A few hundredths of a second."""
START_TEMPERATURE, END_TEMPERATURE = 0.01, 0.0001


@dataclass(frozen=True, slots=True)
class LoweredPlan:
    """A plan as the annealing kernel sees it."""

    plan: Plan
    arrays: PlanArrays
    annealer: PlanAnnealer

    @property
    def seconds(self) -> float:
        """What the evaluator says of the step (or period), to 1e-12; infinite if infeasible."""
        return self.annealer.seconds


def lowered(context: SearchContext, plan: Plan) -> LoweredPlan | None:
    """Lower a plan; None for plans that the kernel does not cover."""
    arrays = plan_arrays(context, plan)
    return LoweredPlan(plan, arrays, PlanAnnealer(context.links, arrays)) if arrays is not None else None


def polish(rules: NodeRules, start: LoweredPlan, seed: int, num_moves: int = NUM_MOVES) -> LoweredPlan:
    """Anneal a plan's blocks over nodes.

    Parameters
    ----------
    rules
        Constraints: blocks of different groups change places only if there are none, and layouts that are kept stay.
    start
        A plan; its annealer is used up.
    seed, num_moves
        Of the annealing chain.

    Returns
    -------
    LoweredPlan
        A faster plan, or the same.
    """
    before = start.seconds
    if rules.kept or not math.isfinite(before):
        return start
    start.annealer.anneal(seed, num_moves, START_TEMPERATURE, END_TEMPERATURE, between_groups=rules.free)
    if not start.annealer.seconds < before:
        return start
    moved = moved_plan(rules.context, start.plan, start.arrays, start.annealer.nodes())
    return LoweredPlan(moved, start.arrays, start.annealer)
