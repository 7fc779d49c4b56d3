"""Tables of measurements in the PyPI package ``aiconfigurator-core`` (Apache-2.0, NVIDIA), read where it is installed.

The package keeps one folder per system and, below ``data/SYSTEM/FAMILY/SOFTWARE/VERSION``, one parquet file per table.
Here they become tables in hetrl's own column formats, from which `hetrl fit` makes models. Nothing of them is copied
into hetrl.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from hetrl.cost.published import DTYPE_ALIASES, Table, device_of
from hetrl.cost.shipped import read_shipped
from hetrl.cost.work import Chip
from hetrl.errors import Problem, SpecError
from hetrl.units import MIB

PACKAGE = "aiconfigurator-core"
MODULE = "aiconfigurator_core"
OPERATOR_FILES = {
    "gemm": ("gemm", "gemm_perf"),
    "attention_prefill": ("attention", "context_attention_perf"),
    "attention_decode": ("attention", "generation_attention_perf"),
}
"""Kind of a table -> family and file."""
COLLECTIVE_FILES = ("nccl_perf", "oneccl_perf", "custom_allreduce_perf")
DTYPES = ("bf16", "fp8")
"""Dtypes that are read; block-scaled and weight-only formats are other operators."""
BYTES_PER_ELEMENT = 2
"""Collectives are counted in elements of bf16 or half."""
FASTEST = 1.05
"""Rows that would need more than this share of the datasheet's FLOP/s are mistakes of the table, and left out."""
TERAFLOPS_PER_MULTIPROCESSOR = 7.5
_KEYS = {"bf16": "bfloat16_tc_flops", "fp8": "fp8_tc_flops"}

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One system of the package: its name, figures and folder of tables."""

    name: str
    figures: Mapping[str, Any]
    folder: Path

    @property
    def link(self) -> str:
        """Name for the link inside its host, which starts with the class of the link where hetrl knows one."""
        speed = float(self.figures["node"]["intra_node_bw"]) / 1e9
        known: Mapping[str, Mapping[str, float]] = read_shipped("names.yaml")["links"]
        names = [name for name, row in known.items() if name != "inter" and abs(row["GBps"] / speed - 1) < 0.05]
        return "_".join([*names[:1], self.name, "intra"])

    @property
    def device_name(self) -> str:
        """Its name in hetrl's catalogue; its own where the catalogue lacks it."""
        try:
            return device_of(self.name).name
        except SpecError:
            return self.name

    @property
    def families(self) -> tuple[str, ...]:
        """Families of tables that hetrl reads and the system has: gemm, attention, comm."""
        wanted = {"gemm": ("gemm_perf",), "attention": ("context_attention_perf",), "comm": COLLECTIVE_FILES}
        return tuple(
            family
            for family, names in wanted.items()
            if any(True for name in names for _ in _softwares(self.folder / family, name))
        )

    def chips(self) -> dict[str, Chip]:
        """Figures by dtype, for systems that hetrl's catalogue lacks; multiprocessors are a guess."""
        gpu = self.figures["gpu"]
        number = max(1, round(float(gpu[_KEYS["bf16"]]) / 1e12 / TERAFLOPS_PER_MULTIPROCESSOR))
        return {
            dtype: Chip(
                flops_per_second=float(gpu[key]),
                memory_bytes_per_second=float(gpu["mem_bw"]),
                num_multiprocessors=number,
                l2_bytes=50.0 * MIB,
            )
            for dtype, key in _KEYS.items()
            if gpu.get(key)
        }


def installed_version() -> str | None:
    """Version of the package, None if it is not installed."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return None


def provenance_of(package_version: str) -> str:
    """Provenance of what comes from these tables."""
    return f"measured ({PACKAGE} {package_version})"


def systems(root: Path | None = None) -> tuple[System, ...]:
    """Every system of the package, or of a folder in its layout.

    Raises
    ------
    SpecError
        If the package is not installed, or does not look as expected.
    """
    if root is None:
        spec = find_spec(MODULE) if installed_version() is not None else None
        if spec is None or not spec.submodule_search_locations:
            raise SpecError(
                Problem(
                    path="--aiconfigurator",
                    message=f"the package {PACKAGE} is not installed",
                    valid="pip install 'hetrl[measured]'",
                )
            )
        root = Path(next(iter(spec.submodule_search_locations))) / "systems"
    found = []
    for path in sorted(root.glob("*.yaml")):
        figures = yaml.safe_load(path.read_text(encoding="utf-8"))
        if isinstance(figures, dict) and {"data_dir", "gpu", "node"} <= set(figures):
            found.append(System(name=path.stem, figures=figures, folder=root / str(figures["data_dir"])))
    if not found:
        raise SpecError(Problem(path=str(root), message=f"no systems there, as {PACKAGE} has them"))
    return tuple(found)


def tables_of(system: System, *, framework: str = "vllm", max_rows: int | None = None) -> list[Table]:
    """Tables of a system: operators as `framework` runs them (else whoever measured), collectives of all libraries.

    Of each table the newest version is taken. Rows that no chip can reach are left out.

    Parameters
    ----------
    max_rows
        At most so many rows of an operator and dtype, drawn evenly over the table.
    """
    found = []
    for kind, (family, name) in OPERATOR_FILES.items():
        path = _newest(system.folder / family, name, framework)
        if path is not None:
            table = operator_table(kind, system, _columns(path), source_of(system, path))
            if len(table):
                found.append(_thinned(table, max_rows))
    for name in COLLECTIVE_FILES:
        for software in _softwares(system.folder / "comm", name):
            path = _newest(system.folder / "comm", name, software)
            assert path is not None
            table = collective_table(system, _columns(path), source_of(system, path))
            if len(table):
                found.append(table)
    return found


def source_of(system: System, path: Path) -> str:
    """Where a table comes from, with the software that ran."""
    return f"aic-{path.parent.parent.name}-{path.parent.name}, {PACKAGE} {installed_version() or ''}, Apache-2.0"


def operator_table(kind: str, system: System, columns: Columns, source: str) -> Table:
    """Turn one of the package's operator tables into hetrl's columns: bf16 and fp8; no windows, prefixes, beams."""
    dtypes = _dtypes(columns["gemm_dtype" if kind == "gemm" else "attn_dtype"])
    good = np.isin(dtypes, DTYPES) & (columns["latency"] > 0)
    if kind == "gemm":
        dims = {name: columns[name] for name in ("m", "n", "k")}
        flops = 2.0 * columns["m"] * columns["n"] * columns["k"]
    else:
        heads, kv_heads = columns["num_heads"], columns["num_key_value_heads"]
        kv_heads = np.where(kv_heads > 0, kv_heads, heads)  # 0: as many as heads
        dims = {
            "batch": columns["batch_size"], "heads": heads, "kv_heads": kv_heads, "head_dim": columns["head_dim"],
        }  # fmt: skip
        good &= (_dtypes(columns["kv_cache_dtype"]) == dtypes) & (columns["beam_width"] == 1)
        if "window_size" in columns:
            good &= columns["window_size"] == 0
        pairs = columns["batch_size"] * heads * columns["head_dim"]
        if kind == "attention_prefill":
            good &= columns["step"] == 0
            dims["seq_len"] = columns["isl"]
            flops = 2.0 * pairs * columns["isl"] * columns["isl"]
        else:
            dims["kv_len"] = columns["step"] + columns["isl"]
            flops = 4.0 * pairs * dims["kv_len"]
    for dtype, chip in system.chips().items():
        seconds = columns["latency"] * 1e-3
        good &= (dtypes != dtype) | (flops <= FASTEST * chip.flops_per_second * seconds)
    rows = np.flatnonzero(good)
    return _table(
        kind,
        {
            "gpu": _same(system.name, rows),
            "dtype": dtypes[rows],
            **{name: values[rows] for name, values in dims.items()},
            "time_us": columns["latency"][rows] * 1e3,
            "source": _same(source, rows),
        },
    )


def collective_table(system: System, columns: Columns, source: str) -> Table:
    """Turn a table of collectives into hetrl's columns; sizes become bytes of the full buffer."""
    dtype = columns["nccl_dtype"] if "nccl_dtype" in columns else columns["allreduce_dtype"]
    per_node = int(system.figures["node"]["num_gpus_per_node"])
    rows = np.flatnonzero(np.isin(dtype, ("half", "bfloat16")) & (columns["latency"] > 0) & (columns["num_gpus"] > 1))
    libraries = np.array(["nccl-tests" if name == "NCCL" else name for name in columns["kernel_source"].tolist()])
    return _table(
        "collective",
        {
            "gpu": _same(system.name, rows),
            "link": _same(system.link, rows),
            "impl": libraries[rows],
            "op": columns["op_name"][rows],
            "world_size": columns["num_gpus"][rows],
            "nodes": -(-columns["num_gpus"][rows] // per_node),
            "bytes": columns["message_size"][rows] * BYTES_PER_ELEMENT,
            "time_us": columns["latency"][rows] * 1e3,
            "source": _same(source, rows),
        },
    )


def _same(text: str, rows: NDArray[np.int64]) -> NDArray[Any]:
    return np.full(len(rows), text)


def _dtypes(column: NDArray[Any]) -> NDArray[Any]:
    return np.array([DTYPE_ALIASES.get(text, text) for text in column.tolist()])


def _table(kind: str, columns: Mapping[str, NDArray[Any]]) -> Table:
    return Table(
        path=Path(PACKAGE),
        kind=kind,
        header=tuple(columns),
        columns={name: tuple(map(str, values.tolist())) for name, values in columns.items()},
        lines=tuple(range(1, 1 + len(next(iter(columns.values()))))),
    )


def _thinned(table: Table, max_rows: int | None) -> Table:
    """Keep at most so many rows per dtype, chosen at random with a fixed seed."""
    dtypes = np.array(table.columns["dtype"])
    kept = []
    for dtype in np.unique(dtypes):
        rows = np.flatnonzero(dtypes == dtype)
        if max_rows is not None and len(rows) > max_rows:
            rows = np.sort(np.random.default_rng(0).choice(rows, max_rows, replace=False))
        kept.append(rows)
    return table.take(np.concatenate(kept).tolist())


def _softwares(folder: Path, name: str) -> Iterator[str]:
    for path in sorted(folder.glob("*")):
        if any(path.glob(f"*/{name}.parquet")):
            yield path.name


def _newest(folder: Path, name: str, software: str) -> Path | None:
    """Newest table of a software, else of the first one in the alphabet that has it."""
    names = list(_softwares(folder, name))
    if not names:
        return None
    chosen = software if software in names else names[0]
    return max(folder.glob(f"{chosen}/*/{name}.parquet"), key=lambda path: _version_key(path.parent.name))


def _version_key(text: str) -> tuple[int, ...]:
    """Numbers of a version; a release candidate comes before its release."""
    release, candidate, number = text.partition("rc")
    return (*map(int, re.findall(r"\d+", release)), 0 if candidate else 1, *map(int, re.findall(r"\d+", number)))


def _columns(path: Path) -> Columns:
    """Read a parquet file.

    Raises
    ------
    SpecError
        If it is damaged, or no reader is installed.
    """
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise SpecError(
            Problem(path="--aiconfigurator", message="its tables need pyarrow", valid="pip install 'hetrl[measured]'")
        ) from error
    try:
        table = parquet.read_table(path)
        return {name: table.column(name).to_numpy() for name in table.schema.names}
    except (OSError, ValueError) as error:
        raise SpecError(Problem(path=str(path), message=f"cannot be read: {error}")) from error
