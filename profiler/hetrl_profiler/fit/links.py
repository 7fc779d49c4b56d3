"""Fitting link curves: offset, square root and bandwidth, and the residual between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from hetrl.cost.links import LinkCurve, LinkModel, host_of, operation
from hetrl.cost.published import link_figures
from hetrl.cost.work import Array

MAX_KNOTS = 24
LARGEST = 0.15
NUM_NEIGHBOURS = 16
MIN_ERRORS = 5
UNKNOWN_SPREAD = 0.2
"""Half-width in log(seconds) of the interval of a curve with too few sizes to leave some out."""
LEAST_BEYOND = 0.04
"""Least half-width beyond the measured sizes: a few errors that happen to be small promise nothing."""
NUM_REWEIGHTINGS = 8
LARGE_BYTES = 1e6


def fit_curve(
    num_bytes: Array,
    seconds: Array,
    *,
    link: str,
    implementation: str,
    op: str,
    world_size: int,
    num_nodes: int,
    gpu: str,
    source: str,
) -> LinkCurve:
    """Fit one curve to sizes ``[N]`` and times ``[N]``; its interval comes from leaving single sizes out."""
    order = np.argsort(num_bytes, kind="stable")
    sizes, times = num_bytes[order], seconds[order]
    terms = fit_terms(sizes, times)
    knots, residuals = _knots(sizes, times, terms)
    numbers = np.arange(len(sizes))
    errors = np.array([_left_out(sizes, times, terms, numbers == each)[0] for each in numbers[1:-1]])
    low, high = _bounds_near(knots, np.log(sizes[1:-1]), errors)
    beyond = _beyond(sizes, times)
    return LinkCurve(
        link=link,
        implementation=implementation,
        op=operation(op),
        world_size=world_size,
        num_nodes=num_nodes,
        gpu=gpu,
        offset_seconds=float(terms[0]),
        seconds_per_sqrt_byte=float(terms[1]),
        seconds_per_byte=float(terms[2]),
        knots_log_bytes=tuple(round(float(each), 6) for each in knots),
        knots_residual=tuple(round(float(each), 6) for each in residuals),
        knots_low=tuple(round(float(each), 6) for each in low),
        knots_high=tuple(round(float(each), 6) for each in high),
        beyond=beyond,
        source=source,
    )


def _left_out(sizes: Array, times: Array, terms: Array, held: NDArray[np.bool_]) -> Array:
    """``log(measured / predicted)`` of held-out sizes, from the residuals of the others."""
    knots, residuals = _knots(sizes[~held], times[~held], terms)
    return np.asarray(
        np.log(times[held] / _terms_seconds(terms, sizes[held])) - np.interp(np.log(sizes[held]), knots, residuals)
    )


def _bounds_near(knots: Array, logs: Array, errors: Array) -> tuple[Array, Array]:
    """10 % and 90 % quantiles of the `NUM_NEIGHBOURS` errors nearest to every knot: small messages scatter more."""
    if len(errors) < MIN_ERRORS:
        return np.full(len(knots), -UNKNOWN_SPREAD), np.full(len(knots), UNKNOWN_SPREAD)
    near = np.argsort(np.abs(logs[None, :] - knots[:, None]), axis=1, kind="stable")[:, :NUM_NEIGHBOURS]
    low, high = np.quantile(errors[near], [0.1, 0.9], axis=1, method="median_unbiased")
    return np.minimum(low, 0.0), np.maximum(high, 0.0)


def _beyond(sizes: Array, times: Array) -> tuple[float, float]:
    """10 % and 90 % quantiles of the errors of the largest sizes, in a fit without them."""
    held = np.arange(len(sizes)) >= len(sizes) - max(1, round(LARGEST * len(sizes)))
    if (~held).sum() < MIN_ERRORS:
        return -UNKNOWN_SPREAD, UNKNOWN_SPREAD
    errors = _left_out(sizes, times, fit_terms(sizes[~held], times[~held]), held)
    low, high = np.quantile(errors, [0.1, 0.9])
    return min(float(low), -LEAST_BEYOND), max(float(high), LEAST_BEYOND)


def fit_terms(num_bytes: Array, seconds: Array) -> Array:
    """Offset, seconds per square root of a byte, seconds per byte: non-negative, by reweighted relative error."""
    columns = np.stack([np.ones_like(num_bytes), np.sqrt(num_bytes), num_bytes], axis=1)
    scale = columns.max(axis=0)
    weight = 1.0 / seconds
    terms = np.zeros(3)
    for _ in range(NUM_REWEIGHTINGS):
        terms = nnls(columns / scale * weight[:, None], seconds * weight)[0] / scale
        error = np.abs(columns @ terms / seconds - 1.0)
        weight = 1.0 / seconds / np.sqrt(np.maximum(error, 0.02))
    return np.asarray(terms)


def datasheet_spread(curves: Sequence[LinkCurve]) -> tuple[float, float]:
    """10 % and 90 % quantiles of ``log(measured / datasheet)``, around 0; each host weighs the same.

    What the interval of a link without measurements has to hold (`hetrl.cost.links.NETWORK_SPREAD`). Only messages from
    `LARGE_BYTES` on count: smaller ones are few microseconds of noise.
    """
    errors: dict[tuple[str, str], list[Array]] = defaultdict(list)
    for curve in curves:
        sizes = np.exp(curve.knots_log_bytes)
        sizes = sizes[sizes >= LARGE_BYTES]
        latency, bandwidth = link_figures(curve.link)
        datasheet = LinkModel(latency_seconds=latency, bytes_per_second=bandwidth)
        predicted = datasheet.collective_seconds(curve.op, sizes, curve.world_size, num_nodes=curve.num_nodes)
        errors[host_of(curve.link), curve.gpu].append(np.log(curve.seconds(sizes) / predicted.seconds))
    hosts = [np.concatenate(parts) for parts in errors.values()]
    values = np.concatenate(hosts)
    weights = np.concatenate([np.full(len(host), 1.0 / len(host)) for host in hosts])
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    low, high = (float(values[order][np.searchsorted(share, level)]) for level in (0.1, 0.9))
    return min(low, 0.0), max(high, 0.0)


def fit_latency_and_bandwidth(num_bytes: Array, seconds: Array) -> tuple[float, float]:
    """Latency in seconds and bytes per second of point-to-point messages (two terms, relative error)."""
    columns = np.stack([np.ones_like(num_bytes), num_bytes], axis=1)
    scale = columns.max(axis=0)
    latency, per_byte = nnls(columns / scale / seconds[:, None], np.ones_like(seconds))[0] / scale
    if per_byte <= 0:
        raise ValueError("the messages are too small to see a bandwidth")
    return float(latency), float(1.0 / per_byte)


def _terms_seconds(terms: Array, num_bytes: Array | float) -> Array:
    return np.asarray(terms[0] + terms[1] * np.sqrt(num_bytes) + terms[2] * num_bytes)


def _knots(sizes: Array, times: Array, terms: Array) -> tuple[Array, Array]:
    """Log sizes and log residuals; more than `MAX_KNOTS` sizes are grouped and each group gives its center."""
    logs, residual = np.log(sizes), np.log(times / _terms_seconds(terms, sizes))
    if len(sizes) <= MAX_KNOTS:
        return logs, residual
    edges = np.linspace(logs[0], logs[-1], MAX_KNOTS)
    group = np.searchsorted(edges, logs, side="left")
    present = np.unique(group)
    knots = np.array([logs[group == each].mean() for each in present])
    values = np.array([_center(residual[group == each]) for each in present])
    knots[0], knots[-1] = logs[0], logs[-1]
    return knots, values


def _center(log_residuals: Array) -> float:
    """Log of the factor with the least mean relative error: the median weighted by 1 / time."""
    order = np.argsort(log_residuals)
    weight = np.cumsum(np.exp(-log_residuals[order]))
    return float(log_residuals[order][np.searchsorted(weight, 0.5 * weight[-1])])
