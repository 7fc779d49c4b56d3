"""Batch shares of replicas: how many prompts each handles, so that all finish together."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

from hetrl.cost.pipeline import threshold_fill

NUM_FIXPOINT_ROUNDS = 2


def even_shares(num_prompts: int, num_replicas: int) -> tuple[int, ...]:
    """Equal shares; the first replicas take the remainder."""
    base, extra = divmod(num_prompts, num_replicas)
    return tuple(base + (1 if index < extra else 0) for index in range(num_replicas))


def proportional_shares(num_prompts: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Shares in proportion to speeds, rounded by largest remainder (ties to the first)."""
    total = sum(speeds)
    exact = [num_prompts * speed / total for speed in speeds]
    shares = [math.floor(share) for share in exact]
    order = sorted(range(len(speeds)), key=lambda index: (shares[index] - exact[index], index))
    for index in order[: num_prompts - sum(shares)]:
        shares[index] += 1
    return tuple(shares)


def balanced_shares(
    num_prompts: int, classes: Sequence[Hashable], seconds: Callable[[int, int], float]
) -> tuple[int, ...] | None:
    """Shares by speed, a few rounds of measuring each class at its own share; None if a replica cannot run at all.

    Parameters
    ----------
    classes
        Equal replicas have equal classes.
    seconds
        (replica, prompts) -> seconds; called for one replica of each class.
    """
    if len(set(classes)) == 1:
        return even_shares(num_prompts, len(classes))
    shares = even_shares(num_prompts, len(classes))
    first = {each: classes.index(each) for each in dict.fromkeys(classes)}
    for _ in range(NUM_FIXPOINT_ROUNDS):
        speed = {}
        for each, index in first.items():
            prompts = max(1, shares[index])
            needed = seconds(index, prompts)
            if math.isinf(needed):
                return None
            speed[each] = prompts / needed
        shares = proportional_shares(num_prompts, [speed[each] for each in classes])
    return shares


def exact_shares(
    num_prompts: int, classes: Sequence[Hashable], seconds: Callable[[int, int], float]
) -> tuple[int, ...]:
    """Shares that minimise the slowest replica's time exactly (threshold fill on memoised times)."""
    memo: dict[tuple[Hashable, int], float] = {}

    def function(index: int) -> Callable[[int], float]:
        def of_prompts(prompts: int) -> float:
            if prompts == 0:
                return 0.0
            key = (classes[index], prompts)
            if key not in memo:
                memo[key] = seconds(index, prompts)
            return memo[key]

        return of_prompts

    return threshold_fill([function(index) for index in range(len(classes))], num_prompts)
