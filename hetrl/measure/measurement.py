"""One observation of something that ran."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hetrl.errors import Problem, SpecError
from hetrl.measure.machine import MachineFacts

SCHEMA_VERSION = 1
_KEYS = {"schema_version", "kind", "device_type", "amounts", "measured", "predicted", "labels", "machine", "date"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What ran, on which kind of device, how much of it, and what was observed.

    Parameters
    ----------
    kind
        What ran: ``matmul``, ``memory_copy``, ``all_reduce``, ``generate``, ``train_forward_backward``, ...
    device_type
        Name of the device type it ran on; empty for work of the host (reward function, orchestration).
    amounts
        Amounts of work, SI units in the name: ``num_sequences``, ``num_tokens``, ``num_bytes``, ``rows``.
    measured
        What was observed: ``seconds`` and/or ``peak_bytes`` and the like. At least one entry.
    predicted
        What the plan had said for the entries of ``measured``; an entry it said nothing about is absent, never 0.
    labels
        Where it belongs: run, task, replica, step.
    machine
        Facts of the machine.
    date
        UTC, ISO 8601.
    """

    kind: str
    device_type: str
    amounts: Mapping[str, float]
    measured: Mapping[str, float]
    machine: MachineFacts
    date: str
    predicted: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.kind:
            raise ValueError("a measurement needs a kind")
        if not self.measured:
            raise ValueError(f"{self.kind}: nothing was measured")
        for part in (self.amounts, self.measured, self.predicted):
            for name, value in part.items():
                if not math.isfinite(value) or value < 0:
                    raise ValueError(f"{self.kind}: {name} = {value} is not a finite amount of at least 0")

    @property
    def seconds(self) -> float:
        """Measured duration; KeyError if this measurement has none."""
        return self.measured["seconds"]

    def to_json(self) -> dict[str, object]:
        """Return plain JSON types."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "device_type": self.device_type,
            "amounts": dict(self.amounts),
            "measured": dict(self.measured),
            "predicted": dict(self.predicted),
            "labels": dict(self.labels),
            "machine": self.machine.to_json(),
            "date": self.date,
        }

    @classmethod
    def from_json(cls, data: Any, path: str) -> Measurement:
        """Build one from parsed JSON.

        Raises
        ------
        SpecError
            If a key is missing or unknown, a type is wrong or the schema is of another version.
        """
        if not isinstance(data, dict):
            raise SpecError(Problem(path=path, message="not a measurement", found=repr(data)[:80], valid="an object"))
        if data.get("schema_version") != SCHEMA_VERSION:
            raise SpecError(
                Problem(
                    path=f"{path}.schema_version",
                    message="measurement of another schema version",
                    found=repr(data.get("schema_version")),
                    valid=str(SCHEMA_VERSION),
                )
            )
        wrong = [Problem(path=f"{path}.{key}", message="missing key") for key in sorted(_KEYS - set(data))]
        wrong += [Problem(path=f"{path}.{key}", message="unknown key") for key in sorted(set(data) - _KEYS)]
        if wrong:
            raise SpecError(wrong)
        try:
            return cls(
                kind=_text(data["kind"]),
                device_type=_text(data["device_type"]),
                amounts=_numbers(data["amounts"]),
                measured=_numbers(data["measured"]),
                predicted=_numbers(data["predicted"]),
                labels={_text(key): _text(value) for key, value in dict(data["labels"]).items()},
                machine=MachineFacts(**data["machine"]),
                date=_text(data["date"]),
            )
        except (TypeError, ValueError) as error:
            raise SpecError(Problem(path=path, message=str(error))) from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _numbers(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not an object of numbers")
    for name, number in value.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise TypeError(f"{name} = {number!r} is not a number")
    return value
