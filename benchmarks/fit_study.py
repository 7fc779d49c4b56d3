"""Choose the trees of every operator by nested validation: ``python -m benchmarks.fit_study --data DIR``.

For every outer fold of whole groups (those of `benchmarks.fidelity`) the held-out rows are put aside. The other rows
are split once more by groups, every candidate is fitted to three quarters of them and scored on the fourth, by the mean
absolute error of log(seconds), mean over devices: that chooses. The chosen candidate is then fitted to all rows not put
aside and scored on those that were, beside the one that hindsight would have taken. What wins over all outer folds is
what the fits use (`hetrl_profiler.fit.trees.CHOSEN`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.fidelity import NUM_SPLITS, SEED
from hetrl.files import write_json_atomically

NUM_INNER = 4
OPERATORS = ("gemm", "attention_prefill", "attention_decode")
Scores = dict[str, float]
"""Candidate -> mean absolute log error in percent."""


def scores(train: Any, test: Any) -> Scores:
    """Score every candidate, fitted to ``train``, on ``test``; forests that candidates share are fitted once."""
    from hetrl_profiler.fit.operators import fit_parts, log_errors
    from hetrl_profiler.fit.trees import CANDIDATES

    errors: dict[Any, Any] = {}
    result = {}
    for name, boosting in CANDIDATES.items():
        members = [boosting._replace(losses=(loss,)) for loss in boosting.losses]
        for member in members:
            if member not in errors:
                errors[member] = log_errors(*fit_parts(train, member), test)
        joint = np.mean([errors[member] for member in members], axis=0)
        result[name] = 100 * float(np.abs(joint).mean())
    return result


def one_fold(samples: Any, number: int) -> tuple[Scores, Scores]:
    """Inner and outer scores of one device and outer fold."""
    from hetrl_profiler.fit.samples import grouped_folds

    outer = grouped_folds(samples.groups(), NUM_SPLITS, SEED) == number
    rest = samples.take(~outer)
    inner = grouped_folds(rest.groups(), NUM_INNER, seed=number) == 0
    return scores(rest.take(~inner), rest.take(inner)), scores(rest, samples.take(outer))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the study."""
    from hetrl_profiler.fit.tables import read_tables, samples_of
    from hetrl_profiler.fit.trees import CANDIDATES, CHOSEN

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all scores")
    parser.add_argument("--only", default=",".join(OPERATORS), metavar="OPERATORS", help="which operators")
    parser.add_argument("--folds", type=int, default=NUM_SPLITS, help="outer folds to run (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    args = parser.parse_args(argv)
    samples = samples_of([table for table in read_tables(args.data) if table.kind in args.only.split(",")])
    rows = []
    with ProcessPoolExecutor(max_workers=args.jobs) as pool:
        for operator in args.only.split(","):
            devices = [each for (_, name, dtype), each in samples.items() if (name, dtype) == (operator, "bf16")]
            numbers = range(args.folds)
            futures = [[pool.submit(one_fold, each, number) for each in devices] for number in numbers]
            totals = dict.fromkeys(CANDIDATES, 0.0)
            print(f"{operator}, mean absolute log error in %, mean of {len(devices)} devices")
            for number in numbers:
                found = [future.result() for future in futures[number]]
                inner, outer = (
                    {name: float(np.mean([pair[side][name] for pair in found])) for name in CANDIDATES}
                    for side in (0, 1)
                )
                totals = {name: total + inner[name] / args.folds for name, total in totals.items()}
                chosen, best = min(inner, key=inner.__getitem__), min(outer, key=outer.__getitem__)
                print(
                    f"  outer fold {number}: chosen {chosen!r}, held out {outer[chosen]:.2f}; "
                    f"in hindsight {best!r}, {outer[best]:.2f}",
                    flush=True,
                )
                rows.append({"operator": operator, "fold": number, "inner": inner, "outer": outer, "chosen": chosen})
            print("  inner splits: " + ", ".join(f"{name} {total:.2f}" for name, total in totals.items()))
            winner = min(totals, key=totals.__getitem__)
            said = "as the fits use" if winner == CHOSEN[operator] else f"but the fits use {CHOSEN[operator]!r}"
            print(f"  least: {winner!r}, {said}", flush=True)
    if args.json is not None:
        write_json_atomically(args.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
