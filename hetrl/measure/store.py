"""Append-only store: one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from hetrl.errors import Problem, SpecError
from hetrl.measure.machine import machine_facts
from hetrl.measure.measurement import Measurement
from hetrl.units import format_bytes

MAX_LINE_BYTES = 1 << 20


class MeasurementStore:
    """Measurements of one machine, appended to a file as they arrive.

    Each record is one ``write`` of one whole line to a file opened for appending, so concurrent writers do not
    interleave and nothing already stored changes.

    Parameters
    ----------
    path
        The file; it and its folder are made on the first record.
    labels
        Labels added to every record, e.g. the run.
    accelerator
        Facts of the accelerator that does the work.
    """

    def __init__(
        self, path: Path, labels: Mapping[str, str] | None = None, *, accelerator: Mapping[str, str] | None = None
    ) -> None:
        self.path = Path(path)
        self._labels = dict(labels or {})
        self._machine = machine_facts(accelerator)

    def record(
        self,
        kind: str,
        device_type: str,
        *,
        amounts: Mapping[str, float],
        measured: Mapping[str, float],
        predicted: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Measurement:
        """Append one observation, dated now, and return it."""
        measurement = self.build(
            kind, device_type, amounts=amounts, measured=measured, predicted=predicted, labels=labels
        )
        self.append([measurement])
        return measurement

    def build(
        self,
        kind: str,
        device_type: str,
        *,
        amounts: Mapping[str, float],
        measured: Mapping[str, float],
        predicted: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Measurement:
        """Return one observation, dated now, without storing it."""
        return Measurement(
            kind=kind,
            device_type=device_type,
            amounts=amounts,
            measured=measured,
            predicted=predicted or {},
            labels={**self._labels, **(labels or {})},
            machine=self._machine,
            date=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )

    def append(self, measurements: Iterable[Measurement]) -> None:
        """Append observations, all in one write."""
        text = "".join(json.dumps(each.to_json(), allow_nan=False) + "\n" for each in measurements)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def load_measurements(path: Path) -> tuple[Measurement, ...]:
    """Read a store.

    Raises
    ------
    SpecError
        Naming every line that is not a measurement.
    """
    found: list[Measurement] = []
    problems: list[Problem] = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}:{number}"
            if len(line) > MAX_LINE_BYTES:
                problems.append(
                    Problem(path=where, message="line too long", valid=f"at most {format_bytes(MAX_LINE_BYTES)}")
                )
                continue
            try:
                found.append(Measurement.from_json(json.loads(line), where))
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                problems.append(Problem(path=where, message=f"not JSON: {error}"))
            except SpecError as error:
                problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    return tuple(found)
