"""Random restarts: starting assignments as the hybrid search draws them, all costed, none improved."""

from __future__ import annotations

import random

from hetrl.search.context import Candidate, SearchContext
from hetrl.search.level4_assignment import Starts

SPREAD = 0.8
"""Standard deviation of the logarithm by which half of the draws distort shares by load."""


def random_restarts(context: SearchContext, *, num_draws: int, seed: int) -> Candidate | None:
    """Return the best of ``num_draws`` random assignments to random groupings; None if none fits."""
    rng = random.Random(seed)
    starts = Starts(context, rng)
    usable = [each for each in context.groupings if len(each) <= context.topology.num_devices]
    best: Candidate | None = None
    for _ in range(num_draws):
        grouping = rng.choice(usable)
        if rng.random() < 0.5:
            assignment = starts.aligned(len(grouping))
        else:
            assignment = starts.proportional(grouping, SPREAD * rng.random())
        cost = context.steps.cost(grouping, assignment, best.cost if best is not None else float("inf"))
        if best is None or cost < best.cost:
            best = Candidate(grouping=grouping, assignment=assignment, cost=cost)
    return best if best is not None and best.feasible else None
