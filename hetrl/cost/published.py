"""Column formats of published measurement tables, and the operator calls their rows stand for.

The formats are those of gemm.csv, attention_prefill.csv, attention_decode.csv, the collective tables, vidur_mlp.csv
and end_to_end.csv; see docs/fidelity.md.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hetrl.cost.operators import ENGINES
from hetrl.cost.shipped import read_shipped
from hetrl.cost.work import DIMENSIONS, Array
from hetrl.errors import Problem, SpecError
from hetrl.spec.device_names import find_device
from hetrl.spec.devices import DeviceType
from hetrl.units import format_bytes

MAX_ROWS = 5_000_000
MAX_TABLE_BYTES = 2**30

KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gemm": ("gpu", "dtype", "m", "n", "k"),
        "attention_prefill": ("gpu", "dtype", "batch", "heads", "kv_heads", "head_dim", "seq_len"),
        "attention_decode": ("gpu", "dtype", "batch", "heads", "kv_heads", "head_dim", "kv_len"),
        "collective": ("gpu", "link", "impl", "op", "world_size", "nodes", "bytes"),
        "layer": ("gpu", "tp", "num_tokens", "n_head", "n_kv_head", "n_embd", "n_ffn", "gated"),
        "end_to_end": ("category", "gpu", "num_gpus", "model", "metric", "unit"),
    }
)
"""Kind of a table -> columns it must have."""

NUMBERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gemm": DIMENSIONS["gemm"],
        "attention_prefill": DIMENSIONS["attention_prefill"],
        "attention_decode": DIMENSIONS["attention_decode"],
        "collective": ("world_size", "nodes", "bytes"),
        "layer": ("tp", "num_tokens", "n_head", "n_kv_head", "n_embd", "n_ffn"),
        "end_to_end": (),
    }
)
"""Kind of a table -> columns of positive numbers. Rows of end-to-end tables are judged one by one when composed."""
MAX_PROBLEMS = 50
"""So many problems of a table are listed; a broken export has one per row."""

DTYPE_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "bfloat16": "bf16",
        "float16": "fp16",
        "half": "fp16",
        "float32": "fp32",
        "float": "fp32",
        "float8": "fp8",
        "fp8_e4m3": "fp8",
        "float8_e4m3fn": "fp8",
    }
)
"""Other names of dtypes."""

LAYER_OPERATORS: Mapping[str, str] = MappingProxyType(
    {
        "emb": "memory_embedding",
        "input_layernorm": "memory_norm",
        "attn_pre_proj": "gemm",
        "attn_rope": "memory_rotary",
        "attn_post_proj": "gemm",
        "post_attention_layernorm": "memory_norm",
        "mlp_up_proj": "gemm",
        "mlp_act": "memory_activation",
        "mlp_down_proj": "gemm",
        "add": "memory_add",
    }
)
"""Operators of a layer table (columns ``<name>_us``) and the operator model of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A CSV file: its kind, its columns as text, and the line of the file that each row ends on."""

    path: Path
    kind: str
    header: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]
    lines: tuple[int, ...]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def numbers(self, name: str) -> Array:
        """Column of positive numbers; SpecError naming the lines that hold none."""
        bad = self._not_positive(name)
        if bad:
            raise SpecError(listed(self.path, list(bad.values())))
        return np.array(self.columns[name], dtype=np.float64)

    def bad_rows(self) -> dict[int, Problem]:
        """Rows that lack a positive number where their kind of table needs one (`NUMBERS`), each with its problem."""
        bad: dict[int, Problem] = {}
        for name in NUMBERS[self.kind]:
            for row, problem in self._not_positive(name).items():
                bad.setdefault(row, problem)
        return dict(sorted(bad.items()))

    def take(self, rows: Sequence[int]) -> Table:
        """Return some of the rows, as a table."""
        columns = {name: tuple(column[row] for row in rows) for name, column in self.columns.items()}
        return replace(self, columns=columns, lines=tuple(self.lines[row] for row in rows))

    def _not_positive(self, name: str) -> dict[int, Problem]:
        column = self.columns[name]
        try:
            values = np.array(column, dtype=np.float64)
        except ValueError:
            values = np.array([_number(text) for text in column])
        rows = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        return {
            row: Problem(
                path=f"{self.path}:{self.lines[row]}",
                message=f"{name} must be a positive number",
                found=repr(column[row])[:60],
            )
            for row in rows.tolist()
        }

    def dtypes(self) -> tuple[str, ...]:
        """Dtype of each row as hetrl names it; bf16 where the table has no such column."""
        texts = self.columns.get("dtype", ("bf16",) * len(self))
        return tuple(DTYPE_ALIASES.get(text.strip().lower(), text.strip().lower()) for text in texts)

    def engines(self) -> list[str | None]:
        """Engine of each row, from its ``source`` column; None where it names none."""
        sources = self.columns.get("source", ("",) * len(self))
        return [next((engine for engine in ENGINES if engine in source), None) for source in sources]


def read_table(path: str | os.PathLike[str]) -> Table:
    """Read a CSV file of one of the `KINDS`.

    Raises
    ------
    SpecError
        If it cannot be read, has rows of different lengths or is of no known kind.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_TABLE_BYTES:
            raise SpecError(
                Problem(path=str(path), message=f"the table is larger than {format_bytes(MAX_TABLE_BYTES)}")
            )
        with path.open(newline="", encoding="utf-8-sig") as stream:  # spreadsheets put a byte order mark first
            reader = csv.reader(stream)
            lines = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(Problem(path=str(path), message=f"cannot be read as CSV: {error}")) from error
    if not lines or len(lines) > MAX_ROWS:
        raise SpecError(Problem(path=str(path), message="the table is empty" if not lines else "too many rows"))
    header = tuple(name.strip() for name in lines[0][1])
    ragged = [
        Problem(path=f"{path}:{number}", message=f"{len(row)} fields where the header has {len(header)}")
        for number, row in lines[1:]
        if len(row) != len(header)
    ]
    if ragged:
        raise SpecError(listed(path, ragged))
    if len(set(header)) != len(header):
        raise SpecError(Problem(path=str(path), message="two columns have the same name"))
    kind = next((name for name, needed in KINDS.items() if set(needed) <= set(header)), None)
    if kind is None:
        valid = "; ".join(f"{name}: {','.join(needed)}" for name, needed in KINDS.items())
        raise SpecError(
            Problem(path=str(path), message="columns of no known table", found=",".join(header), valid=valid)
        )
    columns = zip(*(row for _, row in lines[1:]), strict=True) if len(lines) > 1 else ((),) * len(header)
    return Table(
        path=path,
        kind=kind,
        header=header,
        columns=dict(zip(header, map(tuple, columns), strict=True)),
        lines=tuple(number for number, _ in lines[1:]),
    )


def listed(path: Path, problems: Sequence[Problem]) -> list[Problem]:
    """Return the first `MAX_PROBLEMS` problems, and how many there are beside them."""
    more = len(problems) - MAX_PROBLEMS
    if more <= 0:
        return list(problems)
    return [*problems[:MAX_PROBLEMS], Problem(path=str(path), message=f"{more} further rows like these")]


def device_of(name: str) -> DeviceType:
    """Device type of a name in a published table; SpecError if nobody knows it."""
    known: Mapping[str, str] = read_shipped("names.yaml")["devices"]
    return find_device(known.get(name.lower(), name.replace("_", "-")), path="gpu")[0]


def link_figures(link: str) -> tuple[float, float]:
    """Datasheet latency (seconds) and bandwidth (bytes/s, one direction) of a link by the start of its name.

    Links between nodes (``_inter_`` in the name) are network cards. SpecError if the name says nothing.
    """
    known: Mapping[str, Mapping[str, float]] = read_shipped("names.yaml")["links"]
    matching = [name for name in known if link.startswith(name)]
    name = "inter" if "_inter" in link else max(matching, key=len, default="")
    if not name:
        raise SpecError(
            Problem(
                path="link", message="unknown link", found=link, valid="a name that starts with " + ", ".join(known)
            )
        )
    return known[name]["latency_us"] * 1e-6, known[name]["GBps"] * 1e9


def dims_of(table: Table) -> Array:
    """Dimensions ``[D, N]`` of an operator table."""
    return np.stack([table.numbers(name) for name in DIMENSIONS[table.kind]])


def layer_dims(table: Table, name: str) -> Array:
    """Dimensions ``[D, N]`` of one operator of a layer table, per shard of its tensor-parallel degree.

    Bytes count what the operator reads and writes, in two-byte elements. Key/value heads below one are replicated.
    """
    tokens, degree = table.numbers("num_tokens"), table.numbers("tp")
    heads, kv_heads = table.numbers("n_head"), table.numbers("n_kv_head")
    hidden, width = table.numbers("n_embd"), table.numbers("n_ffn")
    gated = np.array([text.strip().lower() in ("1", "true", "1.0") for text in table.columns["gated"]])
    head_dim = hidden / heads
    own_heads, own_kv = heads / degree, np.maximum(1.0, kv_heads / degree)
    gemms: Mapping[str, tuple[Array, Array]] = {
        "attn_pre_proj": ((own_heads + 2 * own_kv) * head_dim, hidden),
        "attn_post_proj": (hidden, own_heads * head_dim),
        "mlp_up_proj": (np.where(gated, 2, 1) * width / degree, hidden),
        "mlp_down_proj": (hidden, width / degree),
    }
    if name in gemms:
        return np.stack([tokens, *gemms[name]])
    elements = {
        "emb": 2 * hidden,
        "input_layernorm": 2 * hidden,
        "post_attention_layernorm": 2 * hidden,
        "attn_rope": 2 * (own_heads + own_kv) * head_dim,
        "mlp_act": np.where(gated, 3, 2) * width / degree,
        "add": 3 * hidden,
    }[name]
    return np.asarray(2.0 * tokens * elements, dtype=np.float64)[None, :]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
