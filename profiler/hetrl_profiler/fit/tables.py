"""Published tables as `Samples` and link curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.chips import chip_of
from hetrl.cost.links import LinkCurve, operation
from hetrl.cost.operators import ENGINES
from hetrl.cost.published import LAYER_OPERATORS, Table, device_of, dims_of, layer_dims, read_table
from hetrl.cost.work import Array, Chip
from hetrl.errors import Problem, SpecError
from hetrl_profiler.fit.links import fit_curve
from hetrl_profiler.fit.samples import Samples, concatenated

Key = tuple[str, str, str]
"""(device, operator, dtype)."""


def read_tables(folder: Path) -> list[Table]:
    """Every operator, layer and collective table of a folder; SpecError if there is none."""
    tables = [read_table(path) for path in sorted(folder.glob("*.csv"))]
    tables = [
        table for table in tables if table.kind == "layer" or (table.kind != "end_to_end" and "time_us" in table.header)
    ]
    if not tables:
        raise SpecError(Problem(path=str(folder), message="holds no table of measurements (*.csv)"))
    return tables


def samples_of(tables: Sequence[Table], *, chips: Mapping[str, Mapping[str, Chip]] | None = None) -> dict[Key, Samples]:
    """All operator measurements, by device, operator and dtype.

    Both measurements of a shape that two engines ran are kept: the engine is a feature, not noise.

    Parameters
    ----------
    chips
        Figures by device name and dtype for devices that the catalogue does not know, or to overrule it.
    """
    found: dict[Key, list[Samples]] = defaultdict(list)
    for table in tables:
        if table.kind == "layer":
            for name, operator in LAYER_OPERATORS.items():
                if f"{name}_us" in table.header:
                    _collect(found, table, operator, layer_dims(table, name), f"{name}_us", chips or {})
        elif table.kind != "collective":
            _collect(found, table, table.kind, dims_of(table), "time_us", chips or {})
    return {key: concatenated(parts) for key, parts in sorted(found.items())}


def _collect(
    found: dict[Key, list[Samples]],
    table: Table,
    operator: str,
    dims: Array,
    column: str,
    chips: Mapping[str, Mapping[str, Chip]],
) -> None:
    rows = np.arange(len(table))
    if table.kind == "layer":  # an operator may be missing for a model
        rows = np.array(
            [row for row, text in enumerate(table.columns[column]) if text.strip() not in ("", "0", "0.0", "nan")],
            dtype=int,
        )
    gpus = np.array(table.columns["gpu"])[rows]
    dtypes = np.array(table.columns.get("dtype", ("bf16",) * len(table)))[rows]
    engines = _engine_codes(table)[rows]
    seconds = np.array([float(table.columns[column][row]) for row in rows]) * 1e-6 if len(rows) else np.empty(0)
    sources = np.array(table.columns.get("source", ("vidur",) * len(table)))[rows]
    for gpu in np.unique(gpus):
        for dtype in np.unique(dtypes[gpus == gpu]):
            chosen = (gpus == gpu) & (dtypes == dtype) & (seconds > 0)
            name, chip = _device(str(gpu), str(dtype), chips)
            found[name, operator, str(dtype)].append(
                Samples(
                    operator=operator,
                    dtype=str(dtype),
                    device=name,
                    chip=chip,
                    dims=dims[:, rows[chosen]],
                    seconds=seconds[chosen],
                    engine=engines[chosen],
                    sources=tuple(sorted(set(sources[chosen].tolist()))),
                )
            )


def _device(gpu: str, dtype: str, chips: Mapping[str, Mapping[str, Chip]]) -> tuple[str, Chip]:
    if gpu in chips:
        return gpu, chips[gpu][dtype]
    device = device_of(gpu)
    return device.name, chip_of(device, dtype)


def _engine_codes(table: Table) -> NDArray[np.int64]:
    default = ENGINES.index("torch") if table.kind == "layer" else 0
    return np.array(
        [default if engine is None else ENGINES.index(engine) for engine in table.engines()], dtype=np.int64
    )


CurveKey = tuple[tuple[str, str | int], ...]
"""Labels of a link curve, as (name, value) pairs: keyword arguments of `fit_curve`."""


def curve_points(tables: Sequence[Table]) -> dict[CurveKey, tuple[Array, Array]]:
    """Sizes and seconds of every curve of the collective tables."""
    rows: dict[CurveKey, list[tuple[float, float]]] = defaultdict(list)
    for table in tables:
        if table.kind != "collective":
            continue
        sizes, seconds = table.numbers("bytes"), table.numbers("time_us") * 1e-6
        worlds, nodes = table.numbers("world_size"), table.numbers("nodes")
        for row in range(len(table)):
            key: CurveKey = (
                ("gpu", table.columns["gpu"][row]),
                ("link", table.columns["link"][row]),
                ("implementation", table.columns["impl"][row]),
                ("op", operation(table.columns["op"][row])),
                ("world_size", int(worlds[row])),
                ("num_nodes", int(nodes[row])),
                ("source", table.columns["source"][row] if "source" in table.columns else ""),
            )
            rows[key].append((float(sizes[row]), float(seconds[row])))
    return {key: (np.array(points)[:, 0], np.array(points)[:, 1]) for key, points in sorted(rows.items())}


def curves_of(tables: Sequence[Table]) -> list[LinkCurve]:
    """Fit every collective curve."""
    return [fit_curve(*points, **dict(key)) for key, points in curve_points(tables).items()]  # type: ignore[arg-type]
