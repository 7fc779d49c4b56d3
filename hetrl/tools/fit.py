"""Fit cost coefficients to measurements and write them to a file for --models.

--measurements takes files of `hetrl profile` and makes a cost model for `hetrl plan`. --data takes a folder of CSV
tables, --aiconfigurator the tables of the package of that name; both make operator and link models for `hetrl plan`
and `hetrl predict`.

A device that hetrl has no built-in models of borrows what known devices have in common, so that some 60 points are
enough; one with many points is fitted on its own. Each model keeps its measured ranges and cross-validated error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hetrl.cost.model_files import write_library
from hetrl.cost.operators import OperatorLibrary
from hetrl.cost.published import Table, device_of, read_table
from hetrl.cost.work import Chip
from hetrl.errors import EXIT_OK, Problem, SpecError
from hetrl.files import check_writable
from hetrl.tools.cli import run_command
from hetrl.units import MIB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="DIR|CSV", help="tables of measurements (gemm, attention, ...)")
    source.add_argument(
        "--measurements", type=Path, nargs="+", action="extend", metavar="FILE", help="files of `hetrl profile`"
    )
    source.add_argument(
        "--aiconfigurator",
        action="store_true",
        help="tables of the package aiconfigurator-core (extra 'measured'); of --device-name, or of all devices",
    )
    parser.add_argument(
        "--framework", default="vllm", help="whose kernels to take from the package (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: models.zip; with --measurements model.json")
    parser.add_argument("--config", type=Path, metavar="FILE", help="job file that describes the profiled devices")
    parser.add_argument("--models", type=Path, metavar="FILE", help="cost model to start from (default: built-in)")
    parser.add_argument(
        "--device-name", metavar="NAME", help="only rows of this gpu; if no row names it, all rows are this device's"
    )
    parser.add_argument("--tflops", type=float, help="dense peak of a device that hetrl does not know, bf16")
    parser.add_argument("--memory-GBps", type=float, dest="memory_GBps", help="its memory bandwidth, 1e9 bytes/s")
    parser.add_argument("--multiprocessors", type=int, help="its streaming multiprocessors or cores")


def run(args: argparse.Namespace) -> int:
    """Fit and write."""
    if args.measurements is not None:
        from hetrl.tools.fit_profile import fit_measurements

        out = args.out or Path("model.json")
        return fit_measurements(args.measurements, out=out, config=args.config, base=args.models)
    out = args.out or Path("models.zip")
    check_writable(out)
    from hetrl_profiler.fit.tables import curves_of, samples_of
    from hetrl_profiler.fit.transfer import fit_any

    chips: Mapping[str, Mapping[str, Chip]]
    facts: dict[str, object]
    if args.aiconfigurator:
        from hetrl.tools.fit_package import package_tables

        tables, chips, facts = package_tables(args.device_name, args.framework)
    else:
        tables, chips = _data_tables(args)
        facts = {"data": args.data.name}
    builtin = OperatorLibrary.builtin()
    models = []
    lines = []
    for (device, operator, dtype), samples in samples_of(tables, chips=chips).items():
        if len(samples) < 5:
            print(
                f"hetrl fit: {device} {operator} {dtype}: {len(samples)} points are too few, 5 are the least",
                file=sys.stderr,
            )
            continue
        model = fit_any(samples, builtin)
        model = replace(model, provenance=str(facts.get("provenance", model.provenance)))
        models.append(model)
        error = model.facts["cross_validated_mdape"]
        lines.append(
            f"{device} {operator} {dtype}: {len(samples)} points, cross-validated MdAPE {100 * float(str(error)):.1f} %"
        )
        if sys.stderr.isatty():
            print(f"\r\033[Kfitting: {len(lines)} models", end="", file=sys.stderr, flush=True)
    curves = curves_of(tables)
    write_library(out, models, curves, facts)
    print("\n".join((*lines, *([f"{len(curves)} link curves"] if curves else []), f"written: {out}")))
    return EXIT_OK


def _data_tables(args: argparse.Namespace) -> tuple[list[Table], dict[str, dict[str, Chip]]]:
    from hetrl_profiler.fit.tables import read_tables

    tables = read_tables(args.data) if os.path.isdir(args.data) else [read_table(args.data)]
    if args.device_name is not None:
        tables = [_only(table, args.device_name) for table in tables]
        tables = [table for table in tables if len(table)]
        if not tables:
            raise SpecError(Problem(path="--device-name", message="no rows to fit", found=args.device_name))
    return tables, _chips(args, tables)


def _only(table: Table, name: str) -> Table:
    gpus = np.array(table.columns["gpu"])
    rows = np.flatnonzero(gpus == name)
    if not len(rows):
        rows = np.flatnonzero([_resolved(gpu) == _resolved(name) for gpu in gpus.tolist()])
    chosen = table.take(rows.tolist())
    return replace(chosen, columns={**chosen.columns, "gpu": (name,) * len(rows)})


def _resolved(gpu: str) -> str:
    try:
        return device_of(gpu).name
    except SpecError:
        return gpu


def _chips(args: argparse.Namespace, tables: Sequence[Table]) -> dict[str, dict[str, Chip]]:
    """Figures of devices the catalogue does not know: the user's, as far as given."""
    chips: dict[str, dict[str, Chip]] = {}
    for gpu in sorted({gpu for table in tables for gpu in table.columns["gpu"]}):
        try:
            device_of(gpu)
        except SpecError as error:
            if args.tflops is None or args.memory_GBps is None:
                problem = Problem(path="--device-name", message=f"{error}; describe it with --tflops and --memory-GBps")
                raise SpecError(problem) from error
            chips[gpu] = {
                dtype: Chip(
                    flops_per_second=args.tflops * 1e12 * (2 if dtype == "fp8" else 1),
                    memory_bytes_per_second=args.memory_GBps * 1e9,
                    num_multiprocessors=args.multiprocessors or max(1, round(args.tflops / 7.5)),
                    l2_bytes=50.0 * MIB,
                )
                for dtype in ("bf16", "fp16", "fp32", "fp8")
            }
    return chips


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run_command(add_arguments, run, argv, prog="hetrl fit", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
