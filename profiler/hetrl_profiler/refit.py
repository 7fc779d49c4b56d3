"""Folding measurements into the phase calibrations of a cost model, and saying what changed.

A measurement's weight halves with every `HALF_LIFE_DAYS` of age, counted from the newest one, so that fresh ones
decide; among equally fresh ones each counts once. What the model knew before enters as the prior of the fit (see
`hetrl_profiler.calibration`): it fills in what the measurements cannot tell apart, and no more.

A device that has changed shows twice: against what the model knew, and within the measurements, as a moment from which
on they differ from all before (`find_shift`). Then what came before hardly counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.model import CostModel, PhaseCalibration
from hetrl.cost.unit import UnitCosts
from hetrl.spec.job import Precision
from hetrl_profiler.calibration import calibration_of, coefficients_of, fit_coefficients
from hetrl_profiler.composed import PHASE_OF_KIND, Observation, amounts_of

Array = NDArray[np.float64]

HALF_LIFE_DAYS = 7.0
DRIFT = 0.10
"""A median this far from the prediction may be drift."""
MIN_ROWS_FOR_DRIFT = 4
WEIGHT_BEFORE_SHIFT = 0.02
"""Weight of a measurement taken before the device changed: it still tells shapes apart where fresh ones do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A moment from which on a device takes another time for equal work.

    Parameters
    ----------
    since
        Date of the first measurement after it.
    ratio
        Median of measured over fitted seconds after it, over that before it.
    num_before
        Measurements before it.
    """

    since: str
    ratio: float
    num_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a fit did to the phases that one kind of measurement tells about, on one device type.

    Parameters
    ----------
    ratio_before, ratio_after
        Median of measured over predicted seconds, with the old and the new calibrations.
    low, high
        10 % and 90 % quantiles of measured over predicted with the old calibrations.
    error_before, error_after
        Median absolute relative error.
    is_first
        Nobody had measured it before, so that being off is no drift.
    shift
        When the device changed while it was measured; None if it did not.
    """

    device: str
    kind: str
    phases: tuple[str, ...]
    num_measurements: int
    ratio_before: float
    ratio_after: float
    low: float
    high: float
    error_before: float
    error_after: float
    is_first: bool = False
    shift: Shift | None = None

    @property
    def is_drift(self) -> bool:
        """Whether the device has changed: the median is off, and by more than single measurements scatter."""
        return self.shift is not None or (
            not self.is_first
            and self.num_measurements >= MIN_ROWS_FOR_DRIFT
            and abs(np.log(self.ratio_before)) > np.log1p(DRIFT)
            and not self.low <= 1.0 <= self.high
        )


@dataclass(frozen=True, kw_only=True)
class Refit:
    """A new model and what changed: per device and kind, and each calibration (old, new)."""

    model: CostModel
    changes: tuple[Change, ...]
    calibrations: Mapping[tuple[str, str], tuple[PhaseCalibration, PhaseCalibration]]


def refit(observations: Sequence[Observation], model: CostModel, precision: Precision, *, source: str) -> Refit:
    """Fit the calibrations of every phase that was observed.

    Parameters
    ----------
    observations
        Measured phases; other phases keep their calibrations.
    model
        The model so far: its operators stay, its calibrations are the prior.
    precision
        Dtypes of the job.
    source
        Where the new model says it comes from.
    """
    costs = UnitCosts(model, precision)
    fitted = dict(model.calibrations)
    pairs: dict[tuple[str, str], tuple[PhaseCalibration, PhaseCalibration]] = {}
    changes = []
    for device in sorted({each.device.name for each in observations}):
        for phases in dict.fromkeys(PHASE_OF_KIND.values()):
            rows = [each for each in observations if each.device.name == device and each.phases == phases]
            if not rows:
                continue
            columns = _columns(rows, phases, costs)
            seconds = np.array([each.measurement.seconds for each in rows])
            old = [model.calibration(device, phase) for phase in phases]
            before = np.concatenate([coefficients_of(each) for each in old])
            weights, prior = _weights(rows), _prior(old)
            after = fit_coefficients(columns, seconds, weights, prior)
            shift = find_shift([each.measurement.date for each in rows], seconds / np.maximum(columns @ after, 1e-12))
            past = np.array([shift is not None and each.measurement.date < shift.since for each in rows])
            if shift is not None:
                after = fit_coefficients(columns, seconds, np.where(past, WEIGHT_BEFORE_SHIFT, weights), prior)
            for number, phase in enumerate(phases):
                new = calibration_of(after[3 * number : 3 * number + 3], len(rows))
                pairs[device, phase] = (old[number], new)
                fitted[device, phase] = new
            is_first = all(each.provenance != "measured" for each in old)
            found = _changes(device, phases, rows, columns @ before, columns @ after, past)
            changes += [replace(each, is_first=is_first, shift=shift) for each in found]
    return Refit(model=replace(model, calibrations=fitted, source=source), changes=tuple(changes), calibrations=pairs)


def find_shift(dates: Sequence[str], ratios: Array) -> Shift | None:
    """Find the moment that splits measurements best into slow and fast ones.

    Parameters
    ----------
    dates
        ISO 8601, UTC, of N measurements.
    ratios
        Measured over fitted seconds, ``[N]``.

    Returns
    -------
    shift
        None unless at least `MIN_ROWS_FOR_DRIFT` measurements lie on either side, the medians differ by more than
        `DRIFT`, and nine tenths of one side lie beyond nine tenths of the other.
    """
    order = np.argsort(np.array(dates), kind="stable")
    days, logs = [dates[number] for number in order], np.log(ratios[order])
    best, found = 0.0, None
    for split in range(MIN_ROWS_FOR_DRIFT, len(logs) - MIN_ROWS_FOR_DRIFT + 1):
        if days[split] == days[split - 1]:
            continue
        past, fresh = logs[:split], logs[split:]
        step = float(np.median(fresh) - np.median(past))
        clarity = abs(step) * np.sqrt(len(past) * len(fresh) / len(logs))
        upper, lower = (fresh, past) if step > 0 else (past, fresh)
        apart = np.quantile(upper, 0.1) > np.quantile(lower, 0.9)
        if abs(step) > np.log1p(DRIFT) and apart and clarity > best:
            best, found = clarity, Shift(since=days[split], ratio=float(np.exp(step)), num_before=split)
    return found


def _columns(rows: Sequence[Observation], phases: tuple[str, ...], costs: UnitCosts) -> Array:
    table = [amounts_of(each, costs) for each in rows]
    return np.array([np.concatenate([amounts[phase] for phase in phases]) for amounts in table])


def _prior(old: Sequence[PhaseCalibration]) -> Array:
    """Return what was measured before, or the bare composed time: a default that nobody measured is no knowledge."""
    bare = PhaseCalibration()
    return np.concatenate([coefficients_of(each if each.provenance == "measured" else bare) for each in old])


def _weights(rows: Sequence[Observation]) -> Array:
    dates = [datetime.fromisoformat(each.measurement.date) for each in rows]
    newest = max(dates)
    return np.array([0.5 ** ((newest - date).total_seconds() / 86400 / HALF_LIFE_DAYS) for date in dates])


def _changes(
    device: str,
    phases: tuple[str, ...],
    rows: Sequence[Observation],
    before: Array,
    after: Array,
    past: NDArray[np.bool_],
) -> list[Change]:
    """Compare both models with the measurements of every kind; the new one with those since the last shift."""
    found = []
    for kind in dict.fromkeys(each.kind for each in rows):
        chosen = np.array([each.kind == kind for each in rows])
        fresh = chosen & ~past if (chosen & ~past).any() else chosen
        seconds = np.array([each.measurement.seconds for each in rows])
        old = seconds[chosen] / np.maximum(before[chosen], 1e-12)
        new = seconds[fresh] / np.maximum(after[fresh], 1e-12)
        low, high = np.quantile(old, [0.1, 0.9])
        found.append(
            Change(
                device=device,
                kind=kind,
                phases=phases,
                num_measurements=int(chosen.sum()),
                ratio_before=float(np.median(old)),
                ratio_after=float(np.median(new)),
                low=float(low),
                high=float(high),
                error_before=float(np.median(np.abs(1 / old - 1))),
                error_after=float(np.median(np.abs(1 / new - 1))),
            )
        )
    return found
