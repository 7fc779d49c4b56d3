"""Predict the time of single operations: adds predicted_us, p10_us, p90_us and provenance to the rows of a CSV file.

The file has the columns of one of the tables of docs/fidelity.md, such as gpu,dtype,m,n,k: gemm, attention_prefill,
attention_decode, collective, layer (then the added columns per operator, each after the operator's name) or end_to_end
(then `predicted` in the row's own unit, `composed` of operators and links). Provenance is fitted, or datasheet where
nothing was measured; `extrapolated` says that a shape lies outside what was. What cannot be predicted stays empty, with
the reason as its provenance, and is counted on stderr. A row whose shape is no shape (a size of 0, a word for a number)
is a mistake in the file: all of them are listed with their lines and nothing is written, unless --skip-bad-rows is
given.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hetrl.cost.end_to_end import predict_rows
from hetrl.cost.links import LinkCurve, LinkModel, host_of
from hetrl.cost.model import CostModel
from hetrl.cost.model_files import BUILTIN, read_library, read_links
from hetrl.cost.operators import OperatorLibrary, OperatorModel, Prediction
from hetrl.cost.published import (
    LAYER_OPERATORS,
    Table,
    device_of,
    dims_of,
    layer_dims,
    link_figures,
    listed,
    read_table,
)
from hetrl.cost.work import DIMENSIONS, Array
from hetrl.errors import EXIT_OK, Problem, SpecError
from hetrl.files import check_writable, write_text_atomically
from hetrl.tools.cli import run_command

COLUMNS = ("predicted_us", "p10_us", "p90_us", "provenance", "extrapolated")
END_TO_END = (
    "precision", "framework", "algo", "sync_mode", "train_parallel", "gen_parallel", "global_batch", "micro_batch",
    "seq_or_input_len", "output_len", "mean_seq_len", "value", "notes", "source", "licence", "suspect",
)  # fmt: skip
"""Columns of end_to_end.csv that a table may lack; then nothing is known of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--in", dest="source", type=Path, required=True, metavar="CSV", help="rows to predict")
    parser.add_argument("--out", type=Path, required=True, metavar="CSV", help="where to write them, with predictions")
    parser.add_argument(
        "--models", type=Path, metavar="FILE", help="a fit made by `hetrl fit`; goes before the built-in models"
    )
    parser.add_argument(
        "--skip-bad-rows",
        action="store_true",
        help="leave rows without a valid shape unpredicted, with the reason, instead of refusing the file",
    )


def run(args: argparse.Namespace) -> int:
    """Predict a file."""
    check_writable(args.out)
    table = read_table(args.source)
    bad = table.bad_rows()
    if bad and not args.skip_bad_rows:
        raise SpecError(listed(args.source, list(bad.values())))
    good = [row for row in range(len(table)) if row not in bad]
    missed: Counter[str] = Counter(problem.message for problem in bad.values())
    added = _with_bad_rows(_predicted(table.take(good), args.models, missed), len(table), good, bad)
    write_text_atomically(args.out, _csv_text(table, added))
    for reason, count in missed.most_common():
        rows = "row" if count == 1 else "rows"
        print(f"hetrl predict: {count} {rows} without a prediction: {reason}", file=sys.stderr)
    return EXIT_OK


def _predicted(table: Table, models: Path | None, missed: Counter[str]) -> dict[str, list[str]]:
    """Columns to add to a table of valid rows; reasons of missing predictions are counted in ``missed``."""
    library = OperatorLibrary.builtin()
    curves = read_links(BUILTIN)
    if models is not None:
        if zipfile.is_zipfile(models):
            library = library.merged(read_library(models))
            curves = (*read_links(models), *curves)
        else:  # a cost model, with its operators beside it
            library = library.merged(CostModel.load(models).library)
    if table.kind == "layer":
        added: dict[str, list[str]] = {}
        for name, operator in LAYER_OPERATORS.items():
            columns = _operator_columns(
                table, operator, layer_dims(table, name), library, missed, default_engine="torch"
            )
            added |= {f"{name}_{column}": values for column, values in columns.items()}
        return added
    if table.kind == "collective":
        return _link_columns(table, curves, missed)
    if table.kind == "end_to_end":
        values, reasons = predict_rows(_with_all_columns(table), library)
        missed.update(reason for reason in reasons if reason)
        return {
            "predicted": [_number(value) for value in values],
            "provenance": [f"none: {reason}" if reason else "composed" for reason in reasons],
        }
    return _operator_columns(table, table.kind, dims_of(table), library, missed)


def _with_bad_rows(
    added: dict[str, list[str]], num_rows: int, good: Sequence[int], bad: Mapping[int, Problem]
) -> dict[str, list[str]]:
    """Columns of the good rows as columns of the whole table; a bad row has its problem as provenance, and no more."""
    out = {}
    for name, values in added.items():
        column = [""] * num_rows
        for row, value in zip(good, values, strict=True):
            column[row] = value
        if name.endswith("provenance"):
            for row, problem in bad.items():
                column[row] = f"none: {replace(problem, path='')}"
        out[name] = column
    return out


def _with_all_columns(table: Table) -> Table:
    """Columns of an end_to_end table that this one lacks, empty."""
    missing = {name: ("",) * len(table) for name in END_TO_END if name not in table.columns}
    return replace(table, columns={**table.columns, **missing})


def _operator_columns(
    table: Table,
    operator: str,
    dims: Array,
    library: OperatorLibrary,
    missed: Counter[str],
    *,
    default_engine: str | None = None,
) -> dict[str, list[str]]:
    out = {column: [""] * len(table) for column in COLUMNS}
    gpus = np.array(table.columns["gpu"])
    dtypes = np.array(table.dtypes())
    engines = np.array([engine or default_engine for engine in table.engines()], dtype=object)
    for gpu, dtype in sorted(set(zip(gpus.tolist(), dtypes.tolist(), strict=True))):
        rows = np.flatnonzero((gpus == gpu) & (dtypes == dtype))
        try:
            model = _model(library, gpu, operator, dtype)
        except SpecError as error:
            _miss(out, rows.tolist(), error, missed)
            continue
        for engine in set(engines[rows].tolist()):
            same = rows[engines[rows] == engine] if engine is not None else rows[[e is None for e in engines[rows]]]
            shape = dict(zip(DIMENSIONS[operator], dims[:, same], strict=True))
            _fill(out, same.tolist(), model.predict(engine=engine, **shape))
    return out


def _model(library: OperatorLibrary, gpu: str, operator: str, dtype: str) -> OperatorModel:
    own = library.fitted(gpu, operator, dtype)
    return own if own is not None else library.for_device(device_of(gpu), operator, dtype)


def _link_columns(table: Table, curves: Sequence[LinkCurve], missed: Counter[str]) -> dict[str, list[str]]:
    out = {column: [""] * len(table) for column in COLUMNS}
    names = ("gpu", "link", "impl", "op", "world_size", "nodes")
    sizes, worlds, nodes = table.numbers("bytes"), table.numbers("world_size"), table.numbers("nodes")
    keys = list(zip(*(table.columns[name] for name in names), strict=True))
    for key in sorted(set(keys)):
        rows = np.flatnonzero([each == key for each in keys])
        gpu, link, implementation, op = key[:4]
        try:
            model = _link_model(curves, gpu, link)
            prediction = model.collective_seconds(
                op, sizes[rows], int(worlds[rows[0]]), num_nodes=int(nodes[rows[0]]), implementation=implementation
            )
        except SpecError as error:
            _miss(out, rows.tolist(), error, missed)
            continue
        _fill(out, rows.tolist(), prediction)
    return out


def _link_model(curves: Sequence[LinkCurve], gpu: str, link: str) -> LinkModel:
    """Curves of the link under this GPU, else those of the GPU that measured most on it, else its datasheet."""
    by_gpu: dict[str, list[LinkCurve]] = {}
    for curve in curves:
        if host_of(curve.link) == host_of(link):
            by_gpu.setdefault(curve.gpu, []).append(curve)
    own = by_gpu.get(gpu) or max(by_gpu.values(), key=len, default=[])
    try:
        latency, bandwidth = link_figures(link)
    except SpecError:
        if not own:
            raise
        return LinkModel(own)
    return LinkModel(own, latency_seconds=latency, bytes_per_second=bandwidth)


def _fill(out: dict[str, list[str]], rows: Sequence[int], prediction: Prediction) -> None:
    for position, row in enumerate(rows):
        out["predicted_us"][row] = _number(prediction.seconds[position] * 1e6)
        out["p10_us"][row] = _number(prediction.p10_seconds[position] * 1e6)
        out["p90_us"][row] = _number(prediction.p90_seconds[position] * 1e6)
        out["provenance"][row] = prediction.provenance
        out["extrapolated"][row] = "yes" if prediction.extrapolated[position] else "no"


def _miss(out: dict[str, list[str]], rows: Sequence[int], error: SpecError, missed: Counter[str]) -> None:
    problem = error.problems[0]
    for row in rows:
        out["provenance"][row] = f"none: {replace(problem, valid='', rule='INPUT')}"
    missed[str(error)] += len(rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _csv_text(table: Table, added: dict[str, list[str]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    columns = {**table.columns, **added}
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return stream.getvalue()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run_command(add_arguments, run, argv, prog="hetrl predict", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
