"""Pipeline schedules: the 1F1B recurrence (the definition), a lower bound, and the split of layers over stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence


def one_f_one_b_seconds(
    forward: Sequence[float], backward: Sequence[float], send: Sequence[float], num_micro_batches: int
) -> float:
    """Seconds of a 1F1B schedule, from its dependency recurrence.

    Parameters
    ----------
    forward, backward
        Seconds of one micro-batch on each of P stages.
    send
        Seconds from stage i to i+1 (P-1 entries), the same on the way back.
    num_micro_batches
        m >= 1.

    Notes
    -----
    Stage j runs min(m, P-j) forwards, then alternates one backward and one forward, then drains. A forward waits
    for the previous stage's forward and the send, a backward for the next stage's backward and the send.
    O(m P).
    """
    num_stages = len(forward)
    m = num_micro_batches
    if num_stages == 1:
        return m * (forward[0] + backward[0])
    order = [_stage_order(num_stages, stage, m) for stage in range(num_stages)]
    forward_done = [[0.0] * m for _ in range(num_stages)]
    backward_done = [[0.0] * m for _ in range(num_stages)]
    position = [0] * num_stages
    free_at = [0.0] * num_stages
    remaining = 2 * m * num_stages
    known_forward = [0] * num_stages
    known_backward = [0] * num_stages
    while remaining:
        for stage in range(num_stages):
            while position[stage] < 2 * m:
                is_forward, micro_batch = order[stage][position[stage]]
                if is_forward:
                    if stage > 0 and known_forward[stage - 1] <= micro_batch:
                        break
                    ready = 0.0 if stage == 0 else forward_done[stage - 1][micro_batch] + send[stage - 1]
                    free_at[stage] = max(free_at[stage], ready) + forward[stage]
                    forward_done[stage][micro_batch] = free_at[stage]
                    known_forward[stage] += 1
                else:
                    if stage < num_stages - 1 and known_backward[stage + 1] <= micro_batch:
                        break
                    ready = 0.0 if stage == num_stages - 1 else backward_done[stage + 1][micro_batch] + send[stage]
                    free_at[stage] = max(free_at[stage], ready) + backward[stage]
                    backward_done[stage][micro_batch] = free_at[stage]
                    known_backward[stage] += 1
                position[stage] += 1
                remaining -= 1
    return max(free_at)


def _stage_order(num_stages: int, stage: int, m: int) -> list[tuple[bool, int]]:
    warm_up = min(m, num_stages - stage)
    order = [(True, i) for i in range(warm_up)]
    for i in range(m):
        order.append((False, i))
        if warm_up + i < m:
            order.append((True, warm_up + i))
    return order


def one_f_one_b_lower_bound(
    forward: Sequence[float], backward: Sequence[float], send: Sequence[float], num_micro_batches: int
) -> float:
    """Lower bound of `one_f_one_b_seconds` in O(P).

    For each stage j: its earliest start, its own work, and the part of the first micro-batch's way to the end and
    back that its warm-up forwards cannot hide.
    """
    num_stages = len(forward)
    m = num_micro_batches
    best = 0.0
    before = 0.0
    for j in range(num_stages):
        later = sum(forward[i] + backward[i] for i in range(j + 1, num_stages)) + 2 * sum(send[j:])
        warm_up = min(m, num_stages - j)
        stage = before + m * (forward[j] + backward[j]) + max(0.0, later - (warm_up - 1) * forward[j])
        best = max(best, stage)
        if j < num_stages - 1:
            before += forward[j] + backward[j] + 2 * send[j]
    return best


def forward_only_seconds(forward: Sequence[float], send: Sequence[float], num_micro_batches: int) -> float:
    """Seconds of a forward-only pipeline over equal micro-batches: fill once, then the slowest stage decides."""
    return sum(forward) + sum(send) + (num_micro_batches - 1) * max(forward)


def split_layers(
    seconds_per_layer: Sequence[float], fixed_seconds: Sequence[float], max_layers: Sequence[int], num_layers: int
) -> tuple[int, ...] | None:
    """Split layers over stages so that the slowest stage is as fast as possible, the fastest stages filled first.

    Parameters
    ----------
    seconds_per_layer, fixed_seconds
        Time of a stage with l layers is ``fixed + l * per_layer``.
    max_layers
        Memory cap of each stage.

    Returns
    -------
    Layers per stage (each at least one, in order), or None if the caps do not admit a split.
    """
    num_stages = len(seconds_per_layer)
    if num_layers < num_stages or sum(max_layers) < num_layers or min(max_layers) < 1:
        return None
    thresholds = sorted(
        {
            fixed + layers * each
            for each, fixed, cap in zip(seconds_per_layer, fixed_seconds, max_layers, strict=True)
            for layers in range(1, min(cap, num_layers - num_stages + 1) + 1)
        }
    )

    def fill(threshold: float) -> list[int] | None:
        room = []
        for each, fixed, cap in zip(seconds_per_layer, fixed_seconds, max_layers, strict=True):
            fits = math.floor((threshold - fixed) / each * (1 + 1e-12) + 1e-9)
            if fits < 1:
                return None
            room.append(min(fits, cap))
        return room if sum(room) >= num_layers else None

    low, high = 0, len(thresholds) - 1
    if fill(thresholds[high]) is None:
        return None
    while low < high:
        middle = (low + high) // 2
        if fill(thresholds[middle]) is None:
            low = middle + 1
        else:
            high = middle
    room = fill(thresholds[low])
    assert room is not None
    split = [1] * num_stages
    left = num_layers - num_stages
    for stage in sorted(range(num_stages), key=lambda index: (seconds_per_layer[index], index)):
        take = min(room[stage] - 1, left)
        split[stage] += take
        left -= take
    return tuple(split)


def threshold_fill(seconds: Sequence[Callable[[int], float]], total: int) -> tuple[int, ...]:
    """Distribute ``total`` items over replicas so that the slowest is as fast as possible.

    Parameters
    ----------
    seconds
        For each replica a non-decreasing function of its number of items; ``inf`` where it cannot take as many.

    Returns
    -------
    Items per replica, summing to ``total``; empty if even the best distribution is infeasible.

    Notes
    -----
    Exact for non-decreasing functions: the smallest threshold that leaves room for all items is found among the
    functions' own values by bisection, then surplus is taken from the replicas that finish last.
    """

    def most_items(function: Callable[[int], float], threshold: float) -> int:
        low, high = 0, total
        while low < high:
            middle = (low + high + 1) // 2
            if function(middle) <= threshold:
                low = middle
            else:
                high = middle - 1
        return low

    upper = min((function(total) for function in seconds), default=math.inf)
    if math.isinf(upper):
        finite = [function(most_items(function, 1e300)) for function in seconds]
        upper = max(finite, default=math.inf)
        if sum(most_items(function, upper) for function in seconds) < total:
            return ()
    low, high = 0.0, upper
    for _ in range(50):
        middle = (low + high) / 2
        if sum(most_items(function, middle) for function in seconds) >= total:
            high = middle
        else:
            low = middle
        if high - low <= 1e-9 * high:
            break
    items = [most_items(function, high) for function in seconds]
    surplus = sum(items) - total
    while surplus > 0:
        last = max(range(len(items)), key=lambda index: (seconds[index](items[index]) if items[index] else -1.0, index))
        items[last] -= 1
        surplus -= 1
    return tuple(items)
