"""Folding measurements into the phase calibrations of a cost model, and saying what changed.

A measurement's weight halves with every `HALF_LIFE_DAYS` of age, counted from the newest one, so that fresh ones
decide; among equally fresh ones each counts once. What the model knew before enters as the prior of the fit (see
`hetrl_profiler.calibration`): it fills in what the measurements cannot tell apart, and no more.
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

    @property
    def is_drift(self) -> bool:
        """Whether the device has changed: the median is off, and by more than single measurements scatter."""
        return (
            self.num_measurements >= MIN_ROWS_FOR_DRIFT
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
            after = fit_coefficients(columns, seconds, _weights(rows), _prior(old))
            for number, phase in enumerate(phases):
                new = calibration_of(after[3 * number : 3 * number + 3], len(rows))
                pairs[device, phase] = (old[number], new)
                fitted[device, phase] = new
            changes += _changes(device, phases, rows, columns @ before, columns @ after)
    return Refit(model=replace(model, calibrations=fitted, source=source), changes=tuple(changes), calibrations=pairs)


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
    device: str, phases: tuple[str, ...], rows: Sequence[Observation], before: Array, after: Array
) -> list[Change]:
    found = []
    for kind in dict.fromkeys(each.kind for each in rows):
        chosen = np.array([each.kind == kind for each in rows])
        seconds = np.array([each.measurement.seconds for each in rows])[chosen]
        old, new = seconds / np.maximum(before[chosen], 1e-12), seconds / np.maximum(after[chosen], 1e-12)
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
