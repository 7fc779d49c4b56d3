"""Fitting a roofline: offset and one coefficient per term, by robust relative error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from hetrl.cost.fitted import Roofline
from hetrl.cost.operators import ENGINES
from hetrl.cost.work import DEFAULT_POWER, NUM_SERIAL, POWERS, TERMS, Array
from hetrl_profiler.fit.samples import Samples

LEAST_LOG_COEFFICIENT = -4.0
"""A term may all but vanish, yet a mean over devices and a shift by few points still see it."""
ROWS_OF_A_DEVICE = 2000
SIZE_WEIGHT = 0.75
"""Weight of a row grows with seconds^0.75: what lies beyond the data is extrapolated from the large shapes."""


def fit_roofline(terms: Array, seconds: Array, operator: str) -> Roofline:
    """Fit to terms ``[T, N]`` of an operator and seconds ``[N]`` of one engine.

    No efficiency exceeds 1: small shapes may run from a warm cache faster than memory allows, large ones will not.
    Where a ``spill`` term stands for the traffic that leaves the cache, only that one has to obey memory.
    """
    names, power, num_serial = TERMS[operator], POWERS.get(operator, DEFAULT_POWER), NUM_SERIAL.get(operator, 0)
    weight = np.sqrt((seconds / np.median(seconds)) ** SIZE_WEIGHT)
    weight /= np.sqrt((weight**2).mean())
    logs = np.log(seconds)

    def residual(parameters: Array) -> Array:
        return np.asarray(weight * (np.log(_roofline(parameters, power, num_serial).seconds(terms)) - logs))

    start = np.concatenate([[np.log(np.quantile(seconds, 0.05))], np.full(len(terms), 0.3)])
    peaks = ("compute", "spill" if "spill" in names else "memory")
    least = [0.0 if name in peaks else LEAST_LOG_COEFFICIENT for name in names]
    bounds = (np.array([-20.0, *least]), np.concatenate([[5.0], np.full(len(terms), 9.0)]))
    start = np.clip(start, bounds[0] + 1e-6, bounds[1] - 1e-6)
    found = least_squares(residual, start, bounds=bounds, loss="soft_l1", f_scale=0.1).x
    return _roofline(found, power, num_serial)


def fit_rooflines(samples: Samples) -> dict[str, Roofline]:
    """One roofline per engine."""
    terms = samples.work.terms
    return {
        engine: fit_roofline(terms[:, chosen], samples.seconds[chosen], samples.operator)
        for engine in samples.engines
        for chosen in [samples.engine == ENGINES.index(engine)]
    }


def roofline_seconds(rooflines: dict[str, Roofline], samples: Samples) -> Array:
    """Roofline time of every row; an engine without a roofline takes the first."""
    terms = samples.work.terms
    first = next(iter(rooflines.values()))
    out = np.empty(len(samples))
    for code in np.unique(samples.engine):
        chosen = samples.engine == code
        out[chosen] = rooflines.get(ENGINES[code], first).seconds(terms[:, chosen])
    return out


def mean_rooflines(many: Sequence[dict[str, Roofline]]) -> dict[str, Roofline]:
    """Geometric mean over devices, per engine."""
    out = {}
    for engine in ENGINES:
        known = [rooflines[engine] for rooflines in many if engine in rooflines]
        if known:
            out[engine] = Roofline(
                offset_seconds=float(np.exp(np.mean([np.log(each.offset_seconds) for each in known]))),
                coefficients=tuple(
                    float(np.exp(np.mean(np.log(values))))
                    for values in zip(*(each.coefficients for each in known), strict=True)
                ),
                power=known[0].power,
                num_serial=known[0].num_serial,
            )
    return out


def joint_rooflines(devices: Sequence[Samples]) -> dict[str, Roofline]:
    """One roofline for several devices, per engine; each device counts with at most `ROWS_OF_A_DEVICE` rows."""
    out = {}
    for code, engine in enumerate(ENGINES):
        parts = []
        for samples in devices:
            rows = np.random.default_rng(0).permutation(np.flatnonzero(samples.engine == code))[:ROWS_OF_A_DEVICE]
            if len(rows):
                parts.append(samples.take(rows))
        if parts:
            terms = np.concatenate([part.work.terms for part in parts], axis=1)
            out[engine] = fit_roofline(terms, np.concatenate([part.seconds for part in parts]), parts[0].operator)
    return out


def _roofline(parameters: Array, power: float, num_serial: int) -> Roofline:
    offset, *coefficients = np.exp(parameters)
    return Roofline(
        offset_seconds=float(offset),
        coefficients=tuple(float(each) for each in coefficients),
        power=power,
        num_serial=num_serial,
    )
