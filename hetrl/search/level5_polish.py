"""Level 5, second half: whole plans are annealed block by block, across tasks and groups; what gets better is kept.

Levels 1 to 4 cost every task on node counts; here the objective is the step itself, with the links, hosts and schedules
that result. Blocks change places inside groups, and between groups where the user's constraints allow it.
"""

from __future__ import annotations

import math

from hetrl.plan.plan import Plan
from hetrl.search.constraints import NodeRules
from hetrl.search.context import SearchContext
from hetrl.search.plan_arrays import moved_plan, plan_arrays
from hetrl_kernels.plan_anneal import PlanAnnealer

NUM_MOVES = 20_000
"""A few hundredths of a second."""
START_TEMPERATURE, END_TEMPERATURE = 0.01, 0.0001


def polish(rules: NodeRules, plan: Plan, seed: int, num_moves: int = NUM_MOVES) -> Plan:
    """Anneal a plan's blocks over nodes.

    Parameters
    ----------
    rules
        Constraints: blocks of different groups change places only if there are none, and layouts that are kept stay.
    plan
        A feasible plan.
    seed, num_moves
        Of the annealing chain.

    Returns
    -------
    Plan
        A faster plan, or the same.
    """
    context = rules.context
    arrays = plan_arrays(context, plan) if not rules.kept else None
    if arrays is None:
        return plan
    annealer = PlanAnnealer(context.links, arrays)
    before = annealer.seconds
    if not math.isfinite(before):
        return plan
    annealer.anneal(seed, num_moves, START_TEMPERATURE, END_TEMPERATURE, between_groups=rules.free)
    return moved_plan(context, plan, arrays, annealer.nodes()) if annealer.seconds < before else plan


def plan_seconds(context: SearchContext, plan: Plan) -> float | None:
    """Return what the evaluator would say of a plan's step (or period), to 1e-12, in a fraction of its time.

    Infinite for infeasible plans; None for those that the kernel does not cover.
    """
    arrays = plan_arrays(context, plan)
    return PlanAnnealer(context.links, arrays).seconds if arrays is not None else None
