"""A device with few or no measurements: what known devices have in common, and a correction from its own points.

The typical model is the geometric mean of the known devices' roofline coefficients (of prefill, one fit to all) and
one tree ensemble over all their residuals (each against its own roofline, with features relative to the chip). A new
device shifts those coefficients, as far as its points ask for it, borrows the residual (from `MIN_POINTS_TO_MIX` points
on the mixture of the common one and the known devices' own that they ask for), and adds a Gaussian-process correction
whose hyper-parameters, like the use of the borrowed residual at all, are chosen by leave-one-out error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import least_squares, nnls

from hetrl.cost.fitted import Forest, KernelCorrection, Roofline, kernel
from hetrl.cost.operators import ENGINES, TYPICAL, UNFITTED, OperatorLibrary, OperatorModel, coordinates
from hetrl.cost.work import Array, features
from hetrl_profiler.fit.operators import fit_operator, intervals, log_errors, measured_ranges, quantiles
from hetrl_profiler.fit.roofline import fit_rooflines, joint_rooflines, mean_rooflines, roofline_seconds
from hetrl_profiler.fit.samples import Samples
from hetrl_profiler.fit.trees import Boosting, fit_forest, shared_boosting_of, weighted_sum

ROWS_PER_DEVICE = 6000
SHIFT_PENALTY = 0.15
"""Standard deviation 1 of a log coefficient's shift costs as much as an error of this size in one point."""
MANY_POINTS = 1500
"""From here on a device stands on its own feet."""
LENGTH_SCALES = (0.5, 1.0, 2.0, 4.0)
LINEAR_WEIGHTS = (0.0, 0.1, 1.0)
NOISES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
WEIGHT_EXPONENTS = (0.75, 0.6, 0.45, 0.3, 0.15)
EFFECTIVE_POINTS = 50
MIN_POINTS_TO_MIX = 30
"""With fewer points the mixture of the known devices' residuals would be chance."""
LEAST_SHARE = 0.02
"""Residuals that take a smaller part in a mixture are left out."""
SUM_PENALTY = 0.3
"""How firmly the shares of a mixture sum to 1, in units of one error for the root of the number of points."""
NUM_ROUNDS = 4


def fit_typical(
    devices: Sequence[Samples], *, leave_out: bool = True, facts: Mapping[str, object] | None = None
) -> OperatorModel:
    """Fit the model that stands for an unmeasured device.

    Its intervals come from leaving each device out; without that (``leave_out`` False) they are those of the devices
    themselves, too narrow for a new one.
    """
    boosting = shared_boosting_of(devices[0].operator)
    rooflines, forest = _typical_parts(devices, boosting)
    errors, sizes = [], []
    if leave_out and len(devices) > 1:
        for left_out in devices:
            others = [samples for samples in devices if samples is not left_out]
            parts = _typical_parts(others, boosting._replace(num_trees=boosting.num_trees // 2))
            errors.append(log_errors(*parts, left_out))
            sizes.append(roofline_seconds(parts[0], left_out))
    else:
        errors = [log_errors(rooflines, forest, samples) for samples in devices]
        sizes = [roofline_seconds(rooflines, samples) for samples in devices]
    joint = np.concatenate(errors)
    return OperatorModel(
        device=TYPICAL,
        operator=devices[0].operator,
        dtype=devices[0].dtype,
        chip=devices[0].chip,
        rooflines=rooflines,
        intervals=intervals(np.concatenate(sizes), joint, quantiles(joint)),
        ranges={},
        provenance="datasheet",
        forest=forest,
        facts={
            "devices": [samples.device for samples in devices],
            "left_out_mdape": {
                samples.device: round(float(np.median(np.abs(np.expm1(-error)))), 4)
                for samples, error in zip(devices, errors, strict=True)
            },
            **(facts or {}),
        },
    )


def _typical_parts(devices: Sequence[Samples], boosting: Boosting) -> tuple[dict[str, Roofline], Forest]:
    own = [fit_rooflines(samples) for samples in devices]
    blocks, targets = [], []
    for samples, rooflines in zip(devices, own, strict=True):
        rows = np.random.default_rng(0).permutation(len(samples))[:ROWS_PER_DEVICE]
        part = samples.take(rows)
        base = roofline_seconds(rooflines, part)
        blocks.append(features(part.work, base, part.engine.astype(float), part.chip))
        targets.append(np.log(part.seconds / base))
    # Terms of prefill can stand for each other: the mean of devices that chose differently would be like none of them.
    joint = devices[0].operator == "attention_prefill"
    common = joint_rooflines(devices) if joint else mean_rooflines(own)
    return common, fit_forest(np.concatenate(blocks), np.concatenate(targets), boosting)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transferred:
    rooflines: dict[str, Roofline]
    forest: Forest | None
    correction: KernelCorrection | None
    loo_error: float

    def log_errors(self, samples: Samples) -> Array:
        errors = log_errors(self.rooflines, self.forest, samples)
        if self.correction is not None:
            errors = errors - self.correction.predict(_coordinates(samples, self.rooflines))
        return errors


def _coordinates(samples: Samples, rooflines: dict[str, Roofline]) -> Array:
    return coordinates(samples.work, roofline_seconds(rooflines, samples), samples.engine.astype(float))


def fit_transferred(
    samples: Samples,
    typical: OperatorModel,
    *,
    donors: Sequence[Forest] = (),
    facts: Mapping[str, object] | None = None,
) -> OperatorModel:
    """Fit a device from its own points, however few, on top of the typical model.

    Parameters
    ----------
    samples
        Measurements of the new device; at least 5.
    typical
        Model of `TYPICAL` for the same operator; it must not have seen the device.
    donors
        Residuals of the known devices one by one, for a mixture that suits this device better than the common one.
    """
    if len(samples) >= MANY_POINTS:
        return fit_operator(samples, facts=facts)
    if len(samples) < 5:
        raise ValueError(f"{samples.operator}: {len(samples)} measurements are too few to fit; 5 are the least")
    fitted = _transfer(samples, typical, donors)
    folds = np.random.default_rng(0).permutation(len(samples)) % 5
    errors = np.empty(len(samples))
    for fold in range(5):
        part = _transfer(samples.take(folds != fold), typical, donors)
        errors[folds == fold] = part.log_errors(samples.take(folds == fold))
    base = roofline_seconds(fitted.rooflines, samples)
    wide = [float(each) for each in 1.5 * np.quantile(errors, [0.05, 0.95])]
    return OperatorModel(
        device=samples.device,
        operator=samples.operator,
        dtype=samples.dtype,
        chip=samples.chip,
        rooflines=fitted.rooflines,
        intervals=intervals(base, errors, (wide[0], wide[1])),
        ranges=measured_ranges(samples),
        provenance="fitted",
        forest=fitted.forest,
        correction=fitted.correction,
        facts={
            "num_points": len(samples),
            "cross_validated_mdape": round(float(np.median(np.abs(np.expm1(-errors)))), 5),
            "borrowed_from": typical.facts.get("devices", []) if fitted.forest is not None else [],
            "sources": list(samples.sources),
            **(facts or {}),
        },
    )


def fit_any(samples: Samples, library: OperatorLibrary) -> OperatorModel:
    """Fit a device with whatever it has: alone with many points, else on top of the library's typical model."""
    typical = library.fitted(TYPICAL, samples.operator, samples.dtype) or library.fitted(
        TYPICAL, samples.operator, "bf16"
    )
    if typical is None:
        return fit_transferred(samples, UNFITTED[samples.operator])
    devices = typical.facts.get("devices", [])
    known = [library.fitted(name, samples.operator, typical.dtype) for name in devices]  # type: ignore[attr-defined]
    donors = [model.forest for model in known if model is not None and model.forest is not None]
    return fit_transferred(samples, typical, donors=donors)


def _transfer(samples: Samples, typical: OperatorModel, donors: Sequence[Forest]) -> _Transferred:
    candidates = [_with_forests(samples, typical, [])]
    if typical.forest is not None:
        mixed = donors if len(samples) >= MIN_POINTS_TO_MIX else ()
        candidates.append(_with_forests(samples, typical, [typical.forest, *mixed]))
    return min(candidates, key=lambda each: each.loo_error)


def _with_forests(samples: Samples, typical: OperatorModel, forests: Sequence[Forest]) -> _Transferred:
    """Fit with a mixture of residuals; a single one is taken as it is."""
    known = dict(typical.rooflines)
    rooflines = {engine: known.get(engine, next(iter(known.values()))) for engine in samples.engines}
    residual = np.zeros(len(samples))
    shares = np.zeros(len(forests))
    shares[:1] = 1.0
    for _ in range(NUM_ROUNDS):
        rooflines = _shifted(samples, rooflines, typical, residual)
        if not forests:
            break
        base = roofline_seconds(rooflines, samples)
        rows = features(samples.work, base, samples.engine.astype(float), samples.chip)
        residuals = np.stack([forest.predict(rows) for forest in forests], axis=1)
        if len(forests) > 1:
            shares = _shares(residuals, np.log(samples.seconds / base))
        residual = residuals @ shares
    forest = weighted_sum(forests, shares) if forests else None
    errors = log_errors(rooflines, forest, samples)
    correction, loo_error = _fit_correction(_coordinates(samples, rooflines), errors, _weights(samples.seconds))
    return _Transferred(rooflines=rooflines, forest=forest, correction=correction, loo_error=loo_error)


def _shares(residuals: Array, goal: Array) -> Array:
    """Shares of residuals ``[P, F]`` in a mixture that comes close to ``[P]``: not negative, sum about 1."""
    num_points, num_forests = residuals.shape
    shares = np.full(num_forests, 1.0 / num_forests)
    for _ in range(NUM_ROUNDS):
        weight = 1.0 / np.sqrt(np.maximum(np.abs(goal - residuals @ shares), 0.02))
        penalty = SUM_PENALTY * np.sqrt(num_points)
        rows = np.concatenate([residuals * weight[:, None], np.full((1, num_forests), penalty)])
        shares = nnls(rows, np.append(goal * weight, penalty))[0]
    return np.where(shares >= LEAST_SHARE, shares, 0.0)


def _shifted(
    samples: Samples, start: Mapping[str, Roofline], typical: OperatorModel, residual: Array
) -> dict[str, Roofline]:
    """Typical rooflines with all log coefficients moved by one common vector per engine, towards the measured times."""
    out = {}
    terms = samples.work.terms
    known = dict(typical.rooflines)
    for engine in start:
        anchor = known.get(engine, next(iter(known.values())))
        chosen = samples.engine == ENGINES.index(engine)
        logs = np.log(samples.seconds[chosen]) - residual[chosen]
        shape = np.log([anchor.offset_seconds, *np.maximum(anchor.coefficients, 1e-4)])

        def moved(shift: Array, anchor: Roofline = anchor, shape: Array = shape) -> Roofline:
            offset, *coefficients = np.exp(shape + shift)
            return Roofline(
                offset_seconds=float(offset),
                coefficients=tuple(float(each) for each in coefficients),
                power=anchor.power,
                num_serial=anchor.num_serial,
            )

        def loss(shift: Array, chosen: Array = chosen, logs: Array = logs) -> Array:
            errors = np.log(moved(shift).seconds(terms[:, chosen])) - logs
            return np.concatenate([np.abs(errors) ** 0.75 * np.sign(errors), SHIFT_PENALTY * shift])

        out[engine] = moved(least_squares(loss, np.zeros(len(shape)), bounds=(-4.0, 4.0)).x)
    return out


def _weights(seconds: Array) -> Array:
    """Weights of points, mean 1: a power of their time, the highest one that leaves `EFFECTIVE_POINTS` (Kish).

    Total time is made of few large shapes, which a random choice of points hardly holds.
    """
    for exponent in WEIGHT_EXPONENTS:
        weights = (seconds / np.median(seconds)) ** exponent
        if weights.sum() ** 2 / (weights**2).sum() >= EFFECTIVE_POINTS:
            return np.asarray(weights / weights.mean())
    return np.ones_like(seconds)


def _fit_correction(points: Array, errors: Array, point_weights: Array) -> tuple[KernelCorrection | None, float]:
    """Weighted kernel ridge regression by leave-one-out absolute error; None where it does not help."""
    best, best_error = None, float((point_weights * np.abs(errors)).mean())
    center = points.mean(axis=0)
    spread = np.maximum(points.std(axis=0), 1e-9)
    informative = points.std(axis=0) > 1e-9
    for length in LENGTH_SCALES:
        scale = np.where(informative, spread * length * np.sqrt(informative.sum()), 1e9)
        scaled = (points - center) / scale
        for linear in LINEAR_WEIGHTS:
            gram = kernel(scaled, scaled, linear)
            for noise in NOISES:
                factor = cho_factor(gram + np.diag(noise / point_weights))
                inverse = cho_solve(factor, np.eye(len(errors)))
                weights = inverse @ errors
                error = float((point_weights * np.abs(weights / np.diag(inverse))).mean())
                if error < best_error:
                    best_error = error
                    best = KernelCorrection(points=scaled, weights=weights, center=center, scale=scale, linear=linear)
    return best, best_error
