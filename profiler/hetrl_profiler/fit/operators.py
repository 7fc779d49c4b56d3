"""Fitting one operator of a well-measured device: roofline per engine, residual trees, held-out intervals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.fitted import Forest, Intervals, Roofline
from hetrl.cost.operators import OperatorModel
from hetrl.cost.work import DIMENSIONS, Array, features
from hetrl_profiler.fit.roofline import fit_rooflines, roofline_seconds
from hetrl_profiler.fit.samples import Samples, grouped_folds
from hetrl_profiler.fit.trees import Boosting, boosting_of, fit_forest

NUM_FOLDS = 4
NUM_BINS = 6
LARGEST = 0.15
MIN_ROWS_FOR_TREES = 400
MIN_ROWS_PER_BIN = 30


def fit_operator(
    samples: Samples, *, num_folds: int = NUM_FOLDS, facts: Mapping[str, object] | None = None
) -> OperatorModel:
    """Fit a model to many measurements.

    Parameters
    ----------
    samples
        At least `MIN_ROWS_FOR_TREES` rows for a residual; with fewer it is the roofline alone (or use `transfer`).
    num_folds
        Grouped cross-validation for error and intervals.
    facts
        Source and licence, kept with the model.
    """
    rooflines, forest = fit_parts(samples)
    folds = grouped_folds(samples.groups(), num_folds, seed=1)
    errors = np.empty(len(samples))
    for fold in range(num_folds):
        held = folds == fold
        if held.any():
            errors[held] = log_errors(*fit_parts(samples.take(~held)), samples.take(held))
    large = _largest(samples)
    beyond = log_errors(*fit_parts(samples.take(~large)), samples.take(large)) if large.sum() < len(samples) else errors
    return OperatorModel(
        device=samples.device,
        operator=samples.operator,
        dtype=samples.dtype,
        chip=samples.chip,
        rooflines=rooflines,
        intervals=intervals(roofline_seconds(rooflines, samples), errors, quantiles(beyond)),
        ranges=measured_ranges(samples),
        provenance="fitted",
        forest=forest,
        facts={
            "num_points": len(samples),
            "cross_validated_mdape": round(float(np.median(np.abs(np.expm1(-errors)))), 5),
            "sources": list(samples.sources),
            **(facts or {}),
        },
    )


def fit_parts(samples: Samples, boosting: Boosting | None = None) -> tuple[dict[str, Roofline], Forest | None]:
    """Roofline per engine, and trees on ``log(seconds / roofline)``, by default those of the operator."""
    rooflines = fit_rooflines(samples)
    if len(samples) < MIN_ROWS_FOR_TREES:
        return rooflines, None
    base = roofline_seconds(rooflines, samples)
    rows = features(samples.work, base, samples.engine.astype(float), samples.chip)
    forest = fit_forest(rows, np.log(samples.seconds / base), boosting or boosting_of(samples.operator))
    return rooflines, forest


def log_errors(rooflines: dict[str, Roofline], forest: Forest | None, samples: Samples) -> Array:
    """``log(measured / predicted)``."""
    base = roofline_seconds(rooflines, samples)
    out = np.log(samples.seconds / base)
    if forest is not None:
        out -= forest.predict(features(samples.work, base, samples.engine.astype(float), samples.chip))
    return np.asarray(out)


def _largest(samples: Samples) -> NDArray[np.bool_]:
    """Mask of the shapes that stand for what lies beyond the measured ones.

    A GEMM grows in its rows (n and k are what models have), attention in any dimension: the bytes it moves tell.
    """
    size = samples.dims[DIMENSIONS["gemm"].index("m")] if samples.operator == "gemm" else samples.work.bytes
    return np.asarray(size >= np.quantile(size, 1 - LARGEST))


def quantiles(errors: Array) -> tuple[float, float]:
    """10 % and 90 % quantile."""
    low, high = np.quantile(errors, [0.1, 0.9])
    return float(low), float(high)


def intervals(base_seconds: Array, errors: Array, extrapolated: tuple[float, float]) -> Intervals:
    """Quantiles of held-out errors in bins of the roofline time, beside those of rows beyond the training range."""
    num_bins = max(1, min(NUM_BINS, len(errors) // MIN_ROWS_PER_BIN))
    edges = np.quantile(base_seconds, np.linspace(0, 1, num_bins + 1)[1:-1])
    index = np.searchsorted(edges, base_seconds)
    low, high = zip(*(quantiles(errors[index == number]) for number in range(num_bins)), strict=True)
    return Intervals(edges_seconds=tuple(float(each) for each in edges), low=low, high=high, extrapolated=extrapolated)


def measured_ranges(samples: Samples) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of every dimension and of the bytes moved."""
    table: list[NDArray[np.float64]] = [*samples.dims, samples.work.bytes]
    names = (*DIMENSIONS[samples.operator], "work_bytes")
    return {name: (float(column.min()), float(column.max())) for name, column in zip(names, table, strict=True)}
