"""Replays of decoding for many draws of the response lengths, compiled by Numba at the first call and kept on disk.

Importing this module imports Numba (extra ``sweeps``), so only sweeps do. Sums run in a fixed order: equal inputs give
equal bits.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)  # type: ignore[untyped-decorator]
def replay_decoding(
    lengths: NDArray[np.int64], table: NDArray[np.float64], longest: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Decode the responses of one replica, for every scenario.

    Responses start in their order as soon as a slot is free; all running ones advance one token per iteration.

    Parameters
    ----------
    lengths
        ``[M, n]`` tokens of every response in every scenario, from 1 to ``longest``.
    table
        ``[c, K]`` seconds of one iteration with 1..c active sequences, at K contexts evenly spaced from the prompt to
        the prompt plus ``longest``; linear in between.
    longest
        Tokens of the longest possible response.

    Returns
    -------
    (seconds, iterations)
        ``[M]`` each.
    """
    num_scenarios, n = lengths.shape
    slots = min(table.shape[0], n)
    width = longest + 1
    seconds = np.zeros(num_scenarios)
    iterations = np.zeros(num_scenarios)
    starts = np.zeros(n, dtype=np.int64)
    ending = np.zeros(width, dtype=np.int64)  # responses that end at an iteration, modulo the width
    started = np.zeros(width, dtype=np.int64)  # sum of their starts
    for m in range(num_scenarios):
        now, here, free, following = 0, 0, slots, 0
        while following < n:  # iteration by iteration, until the last response has started
            while ending[here] == 0 and free == 0:
                now += 1
                here = here + 1 if here + 1 < width else 0
            free += ending[here]
            ending[here] = started[here] = 0
            while free > 0 and following < n:
                starts[following] = now
                place = here + lengths[m, following]
                if place >= width:
                    place -= width
                ending[place] += 1
                started[place] += now
                free -= 1
                following += 1
        full = now  # all slots are busy until here
        progress, first = 0.0, 0
        for s in range(n):
            until = starts[s] + lengths[m, s]
            if until > full:
                until = full
                first += starts[s]
            progress += 0.5 * (until - starts[s]) ** 2
        if full > 0:
            seconds[m] = full * _at(table, slots, progress / (slots * full), longest)
        active = slots - free
        for later in range(full + 1, full + width):  # the tail: ever fewer responses
            here = here + 1 if here + 1 < width else 0
            if ending[here] > 0:
                middle = 0.5 * (now + later) - first / active
                seconds[m] += (later - now) * _at(table, active, middle, longest)
                active -= ending[here]
                first -= started[here]
                ending[here] = started[here] = 0
                now = later
                if active == 0:
                    break
        iterations[m] = now
    return seconds, iterations


@njit(cache=True)  # type: ignore[untyped-decorator]
def _at(table: NDArray[np.float64], active: int, progress: float, longest: int) -> float:
    """Seconds of one iteration when the running responses have ``progress`` tokens on average."""
    last = table.shape[1] - 1
    place = min(max(progress / longest * last, 0.0), float(last))
    left = min(int(place), last - 1)
    share = place - left
    return float(table[active - 1, left] * (1.0 - share) + table[active - 1, left + 1] * share)
