"""Seconds of single operators on one device type: fitted where measured, else the datasheet roofline, and said which.

A model is a roofline, times the exponential of a tree ensemble's residual, times that of a kernel correction where a
device was measured with few points only. Sets of models are kept in one file: JSON for what a reader may want to see
(coefficients, ranges, errors, sources), arrays beside it, both inside one zip archive without pickles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetrl.cost.chips import chip_of
from hetrl.cost.fitted import Forest, Intervals, KernelCorrection, Roofline
from hetrl.cost.work import DEFAULT_POWER, DIMENSIONS, NUM_SERIAL, POWERS, TERMS, Array, Chip, Work, features, work_of
from hetrl.errors import Problem, SpecError
from hetrl.spec.devices import DTYPE_BYTES, DeviceType

ENGINES = ("vllm", "sglang", "torch")
"""Software whose kernels were measured; the index is a feature. The first one measured on a device is its default."""

BALANCE_LIMIT = 4.0
"""Beyond this log2 of compute over memory time only the longer one matters."""

TYPICAL = "typical"
"""Device name of the models that stand for a device without measurements: mean coefficients of the known devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Seconds of N shapes.

    Parameters
    ----------
    seconds, p10_seconds, p90_seconds
        Expected time and the interval that holds 80 % of measurements, shape ``[N]``.
    provenance
        ``fitted`` (to measurements of this device) or ``datasheet`` (its peaks, at the efficiency of known devices).
    extrapolated
        Where a shape lies outside what was measured, shape ``[N]``.
    """

    seconds: Array
    p10_seconds: Array
    p90_seconds: Array
    provenance: str
    extrapolated: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorModel:
    """One operator of one device type in one dtype.

    Parameters
    ----------
    device, operator, dtype
        What it predicts; operators are the keys of `hetrl.cost.work.DIMENSIONS`.
    chip
        Datasheet figures.
    rooflines
        Per engine, best known first.
    intervals
        Spread on held-out groups.
    ranges
        Smallest and largest measured value of every dimension, and of the bytes moved (``work_bytes``).
    provenance
        See `Prediction`.
    forest, correction
        Residual of the roofline, in ``log(seconds)``.
    facts
        For people: number of points, cross-validated error, source, licence.
    """

    device: str
    operator: str
    dtype: str
    chip: Chip
    rooflines: Mapping[str, Roofline]
    intervals: Intervals
    ranges: Mapping[str, tuple[float, float]]
    provenance: str
    forest: Forest | None = None
    correction: KernelCorrection | None = None
    facts: Mapping[str, object] = field(default_factory=dict)

    def predict(
        self, *, engine: str | Sequence[str] | None = None, cold_caches: bool = False, **dims: ArrayLike
    ) -> Prediction:
        """Predict shapes; the dimensions broadcast against each other.

        Parameters
        ----------
        engine
            Whose kernels: one of `ENGINES`, or one per shape. An engine that was not measured on this device, and
            None, mean the device's first.
        cold_caches
            Never faster than the datasheet bandwidth allows. Benchmarks repeat one shape, whose operands then stay in
            a large L2 cache; the weights of a real layer do not.
        **dims
            The operator's dimensions, e.g. ``m=4096, n=8192, k=8192``. Positive.

        Raises
        ------
        SpecError
            If a dimension is missing, unknown or not positive.
        """
        table = self._table(dims)
        names = [engine] * table.shape[1] if engine is None or isinstance(engine, str) else list(engine)
        known = list(self.rooflines)
        codes = np.array([known.index(name) if name in known else 0 for name in names])
        work = work_of(self.operator, table, DTYPE_BYTES[self.dtype], self.chip)
        roofline = np.empty(table.shape[1])
        for code, model in enumerate(self.rooflines.values()):
            chosen = codes == code
            if chosen.any():
                roofline[chosen] = model.seconds(work.terms[:, chosen])
        engines = np.array([float(ENGINES.index(name)) for name in known])[codes]
        residual = np.zeros_like(roofline)
        if self.forest is not None:
            residual += self.forest.predict(features(work, roofline, engines, self.chip))
        if self.correction is not None:
            residual += self.correction.predict(coordinates(work, roofline, engines))
        extrapolated = self._outside(table, work.bytes)
        seconds = roofline * np.exp(residual)
        if cold_caches:
            seconds = np.maximum(seconds, work.bytes / self.chip.memory_bytes_per_second)
        low, high = self.intervals.bounds(roofline, extrapolated)
        return Prediction(
            seconds=seconds,
            p10_seconds=seconds * np.exp(low),
            p90_seconds=seconds * np.exp(high),
            provenance=self.provenance,
            extrapolated=extrapolated,
        )

    def _table(self, dims: Mapping[str, ArrayLike]) -> Array:
        names = DIMENSIONS[self.operator]
        wrong = sorted(set(dims) ^ set(names))
        if wrong:
            raise SpecError(
                Problem(
                    path=f"{self.operator} shape",
                    message=f"missing or unknown dimension: {', '.join(wrong)}",
                    valid=", ".join(names),
                )
            )
        columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(dims[name], dtype=np.float64)) for name in names))
        table = np.stack([column.ravel() for column in columns])
        if not (np.isfinite(table) & (table > 0)).all():
            raise SpecError(Problem(path=f"{self.operator} shape", message="every dimension must be a positive number"))
        return np.asarray(table, dtype=np.float64)

    def _outside(self, table: Array, num_bytes: Array) -> NDArray[np.bool_]:
        outside = np.zeros(table.shape[1], dtype=np.bool_)
        if not self.ranges:
            return ~outside
        for name, column in zip((*DIMENSIONS[self.operator], "work_bytes"), (*table, num_bytes), strict=True):
            low, high = self.ranges[name]
            outside |= (column < low) | (column > high)
        return outside


def coordinates(work: Work, roofline_seconds: Array, engines: Array) -> Array:
    """Coordinates of shapes for `KernelCorrection`, ``[N, D + 2]``, or ``[N, D + 3]`` of a GEMM.

    log2 of the dimensions, the engine, and log2 of the roofline time (all large shapes have much in common). For a GEMM
    also by how much arithmetic outlasts memory traffic (log2, within a factor of 16).
    """
    columns = [*np.log2(work.dims), engines, np.log2(roofline_seconds)]
    if work.operator == "gemm":
        names = TERMS["gemm"]
        balance = np.log2(work.terms[names.index("compute")] / work.terms[names.index("memory")])
        columns.append(np.clip(balance, -BALANCE_LIMIT, BALANCE_LIMIT))
    return np.asarray(np.stack(columns, axis=1), dtype=np.float64)


class LazyModel(Protocol):
    """Something that reads a model on demand."""

    def load(self) -> OperatorModel:
        """Read it."""

    def digest(self) -> str:
        """Identify its content."""


def _unfitted(operator: str) -> OperatorModel:
    others = {
        "gemm": (2.0,),
        "attention_prefill": (1.4, 20.0, 3.0, 3.0, 1.4),
        "attention_decode": (3.0, 0.5),
    }.get(operator, ())
    peaks = (1.4,) if operator.startswith("memory") else (1.4, 1.4)
    roofline = Roofline(
        offset_seconds=5e-6,
        coefficients=(*peaks, *others),
        power=POWERS.get(operator, DEFAULT_POWER),
        num_serial=NUM_SERIAL.get(operator, 0),
    )
    return OperatorModel(
        device=TYPICAL,
        operator=operator,
        dtype="bf16",
        chip=Chip(flops_per_second=1.0, memory_bytes_per_second=1.0, num_multiprocessors=1, l2_bytes=1.0),
        rooflines={"vllm": roofline},
        intervals=Intervals(edges_seconds=(), low=(-0.7,), high=(0.7,), extrapolated=(-0.7, 0.7)),
        ranges={},
        provenance="datasheet",
    )


UNFITTED: Mapping[str, OperatorModel] = MappingProxyType({operator: _unfitted(operator) for operator in DIMENSIONS})
"""Where not even typical coefficients are at hand: 70 % of the datasheet's peaks and 5 us per launch."""


class OperatorLibrary:
    """All operator models known, by (device, operator, dtype); unknown ones become datasheet models.

    Parameters
    ----------
    models
        Fitted models, among them the ones of the device `TYPICAL`.
    """

    def __init__(self, models: Sequence[OperatorModel] = ()) -> None:
        self._models = {(model.device, model.operator, model.dtype): model for model in models}
        self._lazy: dict[tuple[str, str, str], LazyModel] = {}
        self._loaded: dict[tuple[str, str, str], OperatorModel] = {}
        self._datasheet: dict[tuple[str, Chip, bool, str, str], OperatorModel] = {}

    def keys(self) -> tuple[tuple[str, str, str], ...]:
        """(device, operator, dtype) of every fitted model."""
        return tuple(sorted({*self._models, *self._lazy}))

    def fitted(self, device: str, operator: str, dtype: str) -> OperatorModel | None:
        """Return the fitted model, or None."""
        key = (device, operator, "bf16" if dtype == "fp16" else dtype)
        if key in self._models:
            return self._models[key]
        if key not in self._loaded and key in self._lazy:
            self._loaded[key] = self._lazy[key].load()
        return self._loaded.get(key)

    def get(self, device: str, operator: str, dtype: str) -> OperatorModel:
        """Model of a device by its name, as `find_device` understands names.

        Raises
        ------
        SpecError
            If nothing is fitted and the device is unknown, or does not compute in `dtype`.
        """
        from hetrl.spec.device_names import find_device

        fitted = self.fitted(device, operator, dtype)
        return fitted if fitted is not None else self.for_device(find_device(device)[0], operator, dtype)

    def for_device(self, device: DeviceType, operator: str, dtype: str) -> OperatorModel:
        """Model of a device type; if nothing is fitted, its datasheet figures at the efficiency of known devices.

        On other vendors' devices only the roofline is used: the residual describes NVIDIA's kernels.
        """
        fitted = self.fitted(device.name, operator, dtype)
        if fitted is not None:
            return fitted
        chip, with_residual = chip_of(device, dtype), device.vendor == "nvidia"
        key = (device.name, chip, with_residual, operator, dtype)  # jobs may describe different devices by one name
        if key not in self._datasheet:
            self._datasheet[key] = self.datasheet(device.name, operator, dtype, chip, with_residual=with_residual)
        return self._datasheet[key]

    def datasheet(self, name: str, operator: str, dtype: str, chip: Chip, *, with_residual: bool) -> OperatorModel:
        """Model of a chip without measurements."""
        typical = self.fitted(TYPICAL, operator, dtype) or self.fitted(TYPICAL, operator, "bf16")
        if typical is None:
            typical = UNFITTED[operator]
        return OperatorModel(
            device=name,
            operator=operator,
            dtype=dtype,
            chip=chip,
            rooflines=typical.rooflines,
            intervals=typical.intervals,
            ranges={},
            provenance="datasheet",
            forest=typical.forest if with_residual else None,
            facts=typical.facts,
        )

    def merged(self, other: OperatorLibrary) -> OperatorLibrary:
        """Return both libraries' models; the other's replace equal ones of this."""
        both = OperatorLibrary()
        both._lazy = {**self._lazy, **other._lazy}
        both._models = {key: model for key, model in self._models.items() if key not in other._lazy} | other._models
        return both

    @classmethod
    @cache
    def builtin(cls) -> OperatorLibrary:
        """Models fitted to published measurements, shipped with hetrl. Arrays are read when a model is first used."""
        from hetrl.cost.model_files import BUILTIN, read_library

        return read_library(BUILTIN)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> OperatorLibrary:
        """Read a file written by `save`, on top of the shipped models; SpecError if it is not one."""
        from hetrl.cost.model_files import read_library

        return cls.builtin().merged(read_library(path))

    def save(self, path: str | PathLike[str]) -> None:
        """Write all fitted models but the shipped ones to one file, whole or not at all."""
        from hetrl.cost.model_files import write_library

        shipped = type(self).builtin()._lazy
        own = [key for key in self.keys() if key in self._models or self._lazy[key] is not shipped.get(key)]
        models = [self.fitted(*key) for key in own]
        write_library(path, [model for model in models if model is not None])

    def digest(self) -> str:
        """Identify the content of all models."""
        from hetrl.cost.model_files import model_digest

        marks = [
            (*key, model_digest(self._models[key]) if key in self._models else self._lazy[key].digest())
            for key in self.keys()
        ]
        return hashlib.sha256(repr(marks).encode()).hexdigest()

    def add_lazy(self, key: tuple[str, str, str], model: LazyModel) -> None:
        """Register a model that is read on first use."""
        self._lazy[key] = model
