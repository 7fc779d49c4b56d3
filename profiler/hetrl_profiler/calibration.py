"""Fitting a phase's calibration: non-negative, robust, and never far from what is known without a reason.

A phase takes ``scale x composed + per_iteration x iterations + per_sequence x sequences``. The three amounts often
grow together, so least squares alone would split the time among them at random. Two things hold the coefficients:
what was known before, first multiplied by the one factor that explains most of the difference, and a penalty on
departing from that, in shares of the time. Relative errors count, large ones less than squared. Rows of nearly the
same shape are one observation, their median: a hundred steps of one kind tell no more of how the time is made up
than one, and what drifts with time must not be taken for what drifts with the shape.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from hetrl.cost.model import PhaseCalibration

Array = NDArray[np.float64]

PENALTY = 0.01
"""Weight of departing from what was known, against the squared relative error of one row."""
UNKNOWN_SHARE = 0.1
"""Departures, in shares of the time, are divided by the known share plus this: what was known to matter moves first,
and what was not has to explain more than noise."""
LEAST_KEPT = 0.1
"""No coefficient falls below this share of what was known: a phase's time never stops depending on its work."""
SMALL_ERROR = 0.03
"""Relative errors above this count linearly."""
MOST_SCALE = 2.0
"""Operators are trusted to a factor of two: time beyond that is taken for a fixed cost of each iteration, until
measurements of several shapes say otherwise."""
SAME_SHAPE = 0.1
"""Rows whose amounts differ by less than this, relatively, are of one shape."""
NUM_REWEIGHTINGS = 10


def fit_coefficients(columns: Array, seconds: Array, weights: Array, prior: Array) -> Array:
    """Non-negative coefficients ``[J]`` of ``columns`` ``[N, J]`` that give ``seconds`` ``[N]``.

    Parameters
    ----------
    weights
        Weight of every row, ``[N]``.
    prior
        What was known before, ``[J]``. Coefficients of columns that are zero everywhere stay as they are.
    """
    used = columns.max(axis=0, initial=0.0) > 0
    if not used.any() or not len(seconds):
        return prior
    shapes, weights = _by_shape(columns, seconds, weights)
    relative = shapes[:, used]
    known = _scaled(prior, _common_factor(relative @ prior[used], weights), shapes)[used]
    if not (relative @ known > 0).any():  # nothing was known of the columns that count here
        known = nnls(relative, np.ones(len(relative)))[0]
    share = np.maximum((weights[:, None] * relative).sum(axis=0) / weights.sum(), 1e-12)
    penalty = np.diag(np.sqrt(PENALTY / (known * share + UNKNOWN_SHARE)))
    shares = known * share
    floor = LEAST_KEPT * shares
    for _ in range(NUM_REWEIGHTINGS):
        error = np.abs(relative @ (shares / share) - 1.0)
        root = np.sqrt(weights / np.maximum(error / SMALL_ERROR, 1.0))
        left = np.concatenate([root[:, None] * relative / share, penalty])
        right = np.concatenate([root, penalty @ (known * share)])
        shares = floor + nnls(left, right - left @ floor)[0]
    fitted = prior.copy()
    fitted[used] = shares / share
    return fitted


def _scaled(prior: Array, factor: float, shapes: Array) -> Array:
    """Multiply what was known by a factor.

    Where nothing was known but the composed time, the factor is `MOST_SCALE` at most; the rest goes to iterations.
    """
    known = prior * factor
    for scale in range(0, len(prior), 3):
        excess = known[scale] - MOST_SCALE
        composed, iterations = shapes[:, scale], shapes[:, scale + 1]
        if excess > 0 and not prior[scale + 1 : scale + 3].any() and iterations.all():
            known[scale] = MOST_SCALE
            known[scale + 1] = float(np.median(excess * composed / iterations))
    return known


def _by_shape(columns: Array, seconds: Array, weights: Array) -> tuple[Array, Array]:
    """Amounts per measured second and weight of every shape: its weighted median, and the root of its weights.

    The heaviest shape has weight 1: errors of the steps of one run go together, so their number says little.
    """
    logs = np.log(np.maximum(columns, 1e-12))
    shapes: list[list[int]] = []
    for row in range(len(columns)):
        for members in shapes:
            if np.abs(logs[row] - logs[members[0]]).max() < SAME_SHAPE:
                members.append(row)
                break
        else:
            shapes.append([row])
    rows, totals = [], []
    for members in shapes:
        # All amounts of a shape are nearly proportional: their sum says how slow a row was for its size.
        size = (columns[members] / columns[members].mean(axis=0).clip(1e-12)).sum(axis=1)
        order = np.argsort(seconds[members] / size)
        cumulative = np.cumsum(weights[members][order])
        middle = members[order[np.searchsorted(cumulative, cumulative[-1] / 2)]]
        rows.append(columns[middle] / seconds[middle])
        totals.append(cumulative[-1])
    return np.array(rows), np.sqrt(np.array(totals) / max(totals))


def _common_factor(predicted_over_measured: Array, weights: Array) -> float:
    """Weighted median of measured over predicted; 1 where nothing was predicted."""
    good = predicted_over_measured > 0
    if not good.any():
        return 1.0
    ratios = 1.0 / predicted_over_measured[good]
    order = np.argsort(ratios)
    cumulative = np.cumsum(weights[good][order])
    return float(ratios[order][np.searchsorted(cumulative, cumulative[-1] / 2)])


def coefficients_of(calibration: PhaseCalibration) -> Array:
    """Scale, per-iteration and per-sequence coefficient."""
    return np.array([calibration.scale, calibration.per_iteration_seconds, calibration.per_sequence_seconds])


def calibration_of(coefficients: Array, num_measurements: int) -> PhaseCalibration:
    """Inverse of `coefficients_of`."""
    scale, per_iteration, per_sequence = (float(each) for each in coefficients)
    return PhaseCalibration(
        scale=scale,
        per_iteration_seconds=per_iteration,
        per_sequence_seconds=per_sequence,
        provenance="measured",
        num_measurements=num_measurements,
    )
