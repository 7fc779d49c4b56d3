"""How far the operator and link models are off on measurements they have not seen, beside the pure datasheet roofline.

``python -m benchmarks.fidelity --data DIR [--json FILE] [--only PART,...] [--jobs N]``; DIR holds the published
tables (docs/fidelity.md). Splits keep whole groups together and use fixed seeds:

random        links: 20 % of the sizes of every curve, three draws
unseen_shape  five folds of groups: all rows of a GEMM's (n, k), of attention's (heads, kv_heads); links: a whole curve
large         GEMM: m >= 8192; decode: the 15 % with the most work; links: the 15 % largest sizes
few_points    fitted to 300 random rows of the device, on top of what the other devices have in common
new_device    the same with 60 rows

"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from hetrl.cost.links import LinkCurve, LinkModel, host_of, ring_steps, wire_factor
from hetrl.cost.operators import ENGINES, OperatorModel
from hetrl.cost.published import link_figures
from hetrl.cost.work import DIMENSIONS
from hetrl.files import write_json_atomically

SEED = 0
HELD_OUT = 0.2
LARGEST = 0.15
NUM_FOLDS = 2
NUM_SPLITS = 5
NUM_END_TO_END_FOLDS = 5
FEW_POINTS = 300
NEW_DEVICE_POINTS = 60
NUM_DRAWS = 3
NOISE_BYTES = 1e6
"""torch-nccl rows below are means of 3 repeats that scatter from 7 to 60 us at equal sizes: scored only under "all"."""
PARTS = ("gemm", "attention_prefill", "attention_decode", "links", "end_to_end")
OPERATOR_SPLITS = {
    ("gemm", "bf16"): ("unseen_shape", "large", "few"),
    ("gemm", "fp8"): ("unseen_shape", "large", "few"),
    ("attention_prefill", "bf16"): ("unseen_shape", "few"),
    ("attention_decode", "bf16"): ("unseen_shape", "large", "few"),
}
"""``few`` stands for few_points and new_device, which share what they borrow."""
Row = dict[str, Any]

THRESHOLDS: tuple[tuple[str, str, str, str, float], ...] = (
    ("gemm bf16", "unseen_shape", "mdape", "GEMM bf16, unseen (n,k)", 4.0),
    ("gemm bf16", "unseen_shape", "p90", "GEMM bf16, unseen (n,k)", 15.0),
    ("gemm bf16", "unseen_shape", "wape", "GEMM bf16, unseen (n,k)", 3.0),
    ("gemm bf16", "large", "mdape", "GEMM bf16, m >= 8192 held out", 4.0),
    ("gemm bf16", "large", "wape", "GEMM bf16, m >= 8192 held out", 4.0),
    ("gemm bf16", "few_points", "mdape", "GEMM bf16 from 300 points", 7.0),
    ("gemm bf16", "few_points", "wape", "GEMM bf16 from 300 points", 4.0),
    ("attention_prefill bf16", "unseen_shape", "mdape", "prefill, unseen heads", 2.0),
    ("attention_prefill bf16", "unseen_shape", "p90", "prefill, unseen heads", 7.0),
    ("attention_decode bf16", "unseen_shape", "mdape", "decode, unseen heads", 2.0),
    ("attention_decode bf16", "large", "mdape", "decode, largest 15 %", 6.0),
    ("nvlink collectives", "random", "mape", "NVLink collectives, random", 9.0),
    ("nvlink collectives", "large", "mape", "NVLink collectives, largest sizes", 18.0),
    ("train_step, all rows", "configuration", "mdape", "training step (end_to_end.csv)", 12.0),
    ("generation, all rows", "configuration", "mdape", "generation (end_to_end.csv)", 12.0),
    ("gemm bf16", "new_device", "mdape", "new device from 60 points, GEMM", 10.0),
    ("attention_prefill bf16", "new_device", "mdape", "new device from 60 points, prefill", 10.0),
    ("attention_decode bf16", "new_device", "mdape", "new device from 60 points, decode", 10.0),
)
"""(operator and dtype, split, metric, what, must reach in %); mean over devices."""


def score(
    measured: Any, predicted: Any, *, low: Any = None, high: Any = None, baseline: Any = None, **labels: object
) -> Row:
    """Metrics of one device and split, in percent."""
    error = np.abs(predicted / measured - 1.0)
    row: Row = {
        **labels,
        "num_rows": len(measured),
        "mdape": 100 * float(np.median(error)),
        "mape": 100 * float(error.mean()),
        "p90": 100 * float(np.quantile(error, 0.9)),
        "wape": 100 * float(np.abs(predicted - measured).sum() / measured.sum()),
    }
    if low is not None:
        row["coverage"] = 100 * float(((measured >= low) & (measured <= high)).mean())
    if baseline is not None:
        off = np.abs(baseline / measured - 1.0)
        row |= {
            "baseline_mdape": 100 * float(np.median(off)),
            "baseline_mape": 100 * float(off.mean()),
            "baseline_p90": 100 * float(np.quantile(off, 0.9)),
            "baseline_wape": 100 * float(np.abs(baseline - measured).sum() / measured.sum()),
        }
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}


def score_model(model: OperatorModel, samples: Any, split: str) -> Row:
    """Score a model on held-out measurements."""
    shape = dict(zip(DIMENSIONS[samples.operator], samples.dims, strict=True))
    prediction = model.predict(engine=[ENGINES[code] for code in samples.engine], **shape)
    return score(
        samples.seconds,
        prediction.seconds,
        low=prediction.p10_seconds,
        high=prediction.p90_seconds,
        baseline=samples.work.datasheet_seconds,
        operator=samples.operator,
        dtype=samples.dtype,
        split=split,
        device=samples.device,
    )


def operator_split(samples: Any, others: Sequence[Any], split: str) -> list[Row]:
    """Fit one device without the held-out rows, and score these."""
    from hetrl_profiler.fit.operators import fit_operator

    if split == "few":
        return few_points(samples, others)
    if split == "large":
        held = held_out_large(samples)
        model = fit_operator(samples.take(~held), num_folds=NUM_FOLDS)
        return [score_model(model, samples.take(held), split)]
    groups = samples.groups()
    fold = np.random.default_rng(SEED).permutation(int(groups.max()) + 1)[groups] % NUM_SPLITS
    return [cross_validated(samples, fold, split)]


def few_points(samples: Any, others: Sequence[Any]) -> list[Row]:
    """Fit 300 and 60 random rows of a device on top of what the other devices have in common; score all other rows."""
    from hetrl_profiler.fit.transfer import fit_transferred, fit_typical

    rng = np.random.default_rng(SEED)
    typical = fit_typical(others, leave_out=False)
    donors = [_residual(other) for other in others]
    result = []
    for split, count in (("few_points", FEW_POINTS), ("new_device", NEW_DEVICE_POINTS)):
        rows = []
        for _ in range(NUM_DRAWS):
            order = rng.permutation(len(samples))
            model = fit_transferred(samples.take(order[:count]), typical, donors=donors)
            rows.append(score_model(model, samples.take(order[count:]), split))
        names = [name for name, value in rows[0].items() if isinstance(value, float)]
        result.append(rows[0] | {name: round(float(np.mean([row[name] for row in rows])), 3) for name in names})
    return result


_RESIDUALS: dict[tuple[str, str, str], Any] = {}
"""(device, operator, dtype) -> trees; a process needs those of a device for each of the others."""


def _residual(samples: Any) -> Any:
    from hetrl_profiler.fit.operators import fit_parts

    key = (samples.device, samples.operator, samples.dtype)
    if key not in _RESIDUALS:
        _RESIDUALS[key] = fit_parts(samples)[1]
    return _RESIDUALS[key]


def cross_validated(samples: Any, fold: Any, split: str) -> Row:
    """Score every fold by a fit to the others; a fold's interval comes from the other folds' errors, as in a model."""
    from hetrl_profiler.fit.operators import fit_parts, intervals, log_errors
    from hetrl_profiler.fit.roofline import roofline_seconds

    errors, base = np.empty(len(samples)), np.empty(len(samples))
    for number in range(NUM_SPLITS):
        held = fold == number
        rooflines, forest = fit_parts(samples.take(~held))
        errors[held] = log_errors(rooflines, forest, samples.take(held))
        base[held] = roofline_seconds(rooflines, samples.take(held))
    low, high = np.empty(len(samples)), np.empty(len(samples))
    for number in range(NUM_SPLITS):
        held = fold == number
        spread = intervals(base[~held], errors[~held], (0.0, 0.0))
        low[held], high[held] = spread.bounds(base[held], np.zeros(int(held.sum()), dtype=bool))
    predicted = samples.seconds * np.exp(-errors)
    return score(
        samples.seconds,
        predicted,
        low=predicted * np.exp(low),
        high=predicted * np.exp(high),
        baseline=samples.work.datasheet_seconds,
        operator=samples.operator,
        dtype=samples.dtype,
        split=split,
        device=samples.device,
    )


def held_out_large(samples: Any) -> Any:
    """Mask of the rows that the large split keeps from the fit."""
    if samples.operator == "gemm":
        return samples.dims[DIMENSIONS["gemm"].index("m")] >= 8192
    size = samples.work.datasheet_seconds
    return size >= np.quantile(size, 1 - LARGEST)


def operator_tasks(folder: Path, parts: Sequence[str]) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Everything to run for the operators. Rows of eager torch layers are left out: they are layers, not kernels."""
    from hetrl_profiler.fit.tables import read_tables, samples_of

    tables = [table for table in read_tables(folder) if table.kind in parts]
    samples = samples_of(tables)
    for operator, dtype in sorted({key[1:] for key in samples}):
        devices = [each for key, each in samples.items() if key[1:] == (operator, dtype)]
        for split in OPERATOR_SPLITS.get((operator, dtype), ()):
            for each in devices:
                others = [other for other in devices if other is not each]
                yield operator_split, (each, others if split == "few" else [], split)


def link_rows(folder: Path) -> list[Row]:
    """All link splits: (link, implementation) by (link, implementation), all operations and world sizes together."""
    from hetrl_profiler.fit.links import fit_curve
    from hetrl_profiler.fit.tables import curve_points, read_tables

    curves = curve_points(read_tables(folder))
    rng = np.random.default_rng(SEED)
    found: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    fitted: dict[Any, LinkCurve] = {key: fit_curve(*points, **dict(key)) for key, points in curves.items()}
    for key, (sizes, seconds) in curves.items():
        labels = dict(key)
        rank = np.argsort(np.argsort(sizes, kind="stable"), kind="stable")
        masks = [("large", rank >= len(sizes) - max(1, round(LARGEST * len(sizes))))]
        for _ in range(NUM_DRAWS):
            picked = np.zeros(len(sizes), dtype=bool)
            picked[rng.choice(len(sizes), max(1, round(HELD_OUT * len(sizes))), replace=False)] = True
            masks.append(("random", picked))
        latency, bandwidth = link_figures(labels["link"])
        wire = wire_factor(labels["op"], labels["world_size"]) * sizes / bandwidth
        baseline = ring_steps(labels["op"], labels["world_size"]) * latency + wire
        for split, held in masks:
            model = LinkModel([fit_curve(sizes[~held], seconds[~held], **labels)])
            _collect(found, model, labels, split, sizes[held], seconds[held], baseline[held])
        host = (host_of(labels["link"]), labels["gpu"])
        family = [each for other, each in fitted.items() if other != key and (host_of(each.link), each.gpu) == host]
        model = LinkModel(family, latency_seconds=latency, bytes_per_second=bandwidth)
        _collect(found, model, labels, "unseen_shape", sizes, seconds, baseline)
    rows = []
    for (group, split), parts in sorted(found.items()):
        measured, predicted, low, high, baseline = (np.concatenate(column) for column in zip(*parts, strict=True))
        operator, device = group.split("|")
        labels = {"operator": operator, "dtype": "", "split": split, "device": device}
        rows.append(score(measured, predicted, low=low, high=high, baseline=baseline, **labels))
    return rows


def _collect(found: Any, model: LinkModel, labels: Row, split: str, sizes: Any, seconds: Any, baseline: Any) -> None:
    prediction = model.collective_seconds(
        labels["op"],
        sizes,
        labels["world_size"],
        num_nodes=labels["num_nodes"],
        implementation=labels["implementation"],
    )
    kind = "nvlink" if labels["link"].startswith("nvlink") else "pcie"
    kind = "network" if "_inter" in labels["link"] else kind
    columns = (seconds, prediction.seconds, prediction.p10_seconds, prediction.p90_seconds, baseline)
    noise = (sizes < NOISE_BYTES) & (labels["implementation"] == "torch-nccl")
    for family, rows in ((f"{kind} collectives", ~noise), (f"{kind} collectives, all", np.ones_like(noise))):
        if rows.any():
            part = tuple(column[rows] for column in columns)
            found.setdefault((f"{family}|{labels['gpu']}", split), []).append(part)


def end_to_end_rows(folder: Path) -> list[Row]:
    """Eligible rows (the committed list), predicted by coefficients fitted to other configurations (5 folds)."""
    from benchmarks.eligible import key_of, read_list, rows_of
    from hetrl.cost.end_to_end import seconds_of
    from hetrl.cost.operators import OperatorLibrary
    from hetrl.cost.published import read_table
    from hetrl_profiler.fit.end_to_end import composed_rows, fit_coefficients

    published = read_table(folder / "end_to_end.csv")
    numbers, scenarios, terms, seconds = composed_rows(published, OperatorLibrary.builtin())
    names = sorted({scenario.configuration for scenario in scenarios})
    folds = dict(zip(names, np.random.default_rng(SEED).permutation(len(names)) % NUM_END_TO_END_FOLDS, strict=True))
    fold = np.array([folds[scenario.configuration] for scenario in scenarios])
    ratio: dict[int, tuple[float, float]] = {}
    for number in range(NUM_END_TO_END_FOLDS):
        kept = np.flatnonzero(fold != number)
        coefficients = fit_coefficients(
            [scenarios[each] for each in kept], [terms[each] for each in kept], [seconds[each] for each in kept]
        )
        for each in np.flatnonzero(fold == number):
            predicted = seconds_of(scenarios[each], terms[each], coefficients)
            ratio[numbers[each]] = (seconds[each], predicted)
    eligible = read_list()
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    configurations: dict[str, set[tuple[str, ...]]] = {}
    for number, row in enumerate(rows_of(published)):
        if key_of(row) in eligible and not row["suspect"]:
            kind = "generation" if row["category"].startswith("generation") else row["category"]
            found.setdefault((kind, row["gpu"]), []).append(ratio.get(number, (1.0, 0.0)))
            configurations.setdefault(kind, set()).add(key_of(row)[1:10])
    rows = []
    for (kind, gpu), pairs in sorted(found.items()):
        measured, predicted = np.array(pairs).T
        labels = {"operator": kind, "dtype": "", "split": "configuration", "device": gpu}
        rows.append(score(measured, predicted, **labels) | {"num_without_prediction": int((predicted == 0).sum())})
    for kind in sorted(configurations):
        pairs = [pair for (name, _), own in found.items() if name == kind for pair in own]
        measured, predicted = np.array(pairs).T
        labels = {"operator": f"{kind}, all rows", "dtype": "", "split": "configuration", "device": "all"}
        extra = {"num_without_prediction": int((predicted == 0).sum()), "num_configurations": len(configurations[kind])}
        rows.append(score(measured, predicted, **labels) | extra)
    return rows


def table(rows: Sequence[Row]) -> str:
    """Mean and worst device per operator, dtype and split."""
    lines = [
        f"{'operator':<30}{'split':<14}{'devices':>8}"
        f"{'MdAPE':>16}{'P90':>16}{'WAPE':>16}{'coverage':>16}{'datasheet MdAPE':>18}{'WAPE':>16}",
        " " * 52 + f"{'mean / worst':>16}" * 4 + f"{'mean / worst':>18}{'mean / worst':>16}",
    ]
    for label, split in sorted({(_label(row), row["split"]) for row in rows}):
        own = [row for row in rows if (_label(row), row["split"]) == (label, split)]
        cells = []
        for name in ("mdape", "p90", "wape", "coverage", "baseline_mdape", "baseline_wape"):
            values = [row[name] for row in own if name in row]
            worst = (min if name == "coverage" else max)(values, default=float("nan"))
            cells.append(f"{np.mean(values):.1f} / {worst:.1f}" if values else "-")
        widths = (16, 16, 16, 16, 18, 16)
        text = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        lines.append(f"{label:<30}{split:<14}{len(own):>8}{text}")
    return "\n".join(lines)


def verdicts(rows: Sequence[Row]) -> str:
    """What must be reached, and what was."""
    lines = [f"{'what':<40}{'metric':<10}{'must':>8}{'mean':>8}{'worst':>8}  verdict"]
    for label, split, metric, what, limit in THRESHOLDS:
        values = [row[metric] for row in rows if (_label(row), row["split"]) == (label, split)]
        if values:
            mean = float(np.mean(values))
            reached = "reached" if mean <= limit else "NOT REACHED"
            lines.append(f"{what:<40}{metric:<10}{limit:>8.1f}{mean:>8.2f}{max(values):>8.2f}  {reached}")
    for label in sorted({_label(row) for row in rows if "coverage" in row}):
        for split in sorted({row["split"] for row in rows if _label(row) == label}):
            own = [row for row in rows if (_label(row), row["split"]) == (label, split) and "coverage" in row]
            values = [row["coverage"] for row in own]
            mean = float(np.mean(values))
            pooled = float(np.average(values, weights=[row["num_rows"] for row in own]))
            reached = "reached" if 75 <= mean <= 85 else "NOT REACHED"
            what = f"p10-p90 coverage, {label}, {split}"
            all_rows = f"of all rows {pooled:.1f}"
            lines.append(f"{what:<58}{'75-85':>8}{mean:>8.2f}{min(values):>8.2f}  {reached}, {all_rows}")
    return "\n".join(lines)


def _label(row: Row) -> str:
    return f"{row['operator']} {row['dtype']}".strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    args = parser.parse_args(argv)
    parts = args.only.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"--only: {', '.join(unknown)} is not of {', '.join(PARTS)}")
    rows: list[Row] = []
    with ProcessPoolExecutor(max_workers=args.jobs) as pool:
        futures = [pool.submit(function, *arguments) for function, arguments in operator_tasks(args.data, parts)]
        for number, future in enumerate(futures, start=1):
            for row in future.result():
                rows.append(row)
                name = f"{_label(row)} {row['split']} {row['device']}"
                print(f"[{number}/{len(futures)}] {name}: MdAPE {row['mdape']:.2f} %", file=sys.stderr, flush=True)
    if "links" in parts:
        rows += link_rows(args.data)
    if "end_to_end" in parts:
        rows += end_to_end_rows(args.data)
    print(table(rows))
    print()
    print(verdicts(rows))
    if args.json is not None:
        write_json_atomically(args.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
