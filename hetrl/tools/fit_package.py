"""The part of `hetrl fit` that takes the tables of the package aiconfigurator-core."""

from __future__ import annotations

from collections.abc import Mapping

from hetrl.cost.published import Table, device_of
from hetrl.cost.work import Chip
from hetrl.errors import Problem, SpecError

MAX_ROWS = 4_000
"""Rows per operator, dtype and system: more only takes longer."""


def package_tables(
    device: str | None, framework: str
) -> tuple[list[Table], dict[str, Mapping[str, Chip]], dict[str, object]]:
    """Tables of one device or of all, figures of devices that the catalogue lacks, and facts for the model file.

    Raises
    ------
    SpecError
        If the package is not installed, or has no tables of the device.
    """
    from hetrl_profiler.aiconfigurator import PACKAGE, installed_version, provenance_of, systems, tables_of

    tables: list[Table] = []
    chips: dict[str, Mapping[str, Chip]] = {}
    names: list[str] = []
    for system in systems():
        name = system.device_name
        names.append(system.name)
        if device is not None and device != system.name and _catalogue_name(device) != name:
            continue
        found = tables_of(system, framework=framework, max_rows=MAX_ROWS)
        if found and name == system.name:
            chips[system.name] = system.chips()
        tables += found
    if not tables:
        raise SpecError(
            Problem(
                path="--device-name",
                message=f"{PACKAGE} has no tables of it",
                found=device or "",
                valid=", ".join(names),
            )
        )
    version = installed_version() or ""
    facts: dict[str, object] = {
        "data": f"{PACKAGE} {version}",
        "licence": "Apache-2.0",
        "provenance": provenance_of(version),
    }
    return tables, chips, facts


def _catalogue_name(name: str) -> str:
    """Name in the catalogue; the name itself if it is not there."""
    try:
        return device_of(name).name
    except SpecError:
        return name
