"""Make the fitted models that ship with hetrl: ``python -m hetrl_profiler.fit.library --data DIR --out FILE``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # scikit-learn's threads spin where cores are shared

import numpy as np

from hetrl.cost.model_files import write_library
from hetrl.cost.operators import OperatorModel
from hetrl.cost.work import DEFAULT_POWER, DIMENSIONS, NUM_SERIAL, POWERS, TERMS, Chip, features, work_of
from hetrl_profiler.fit import links, operators, roofline, transfer, trees
from hetrl_profiler.fit.operators import fit_operator
from hetrl_profiler.fit.samples import Samples
from hetrl_profiler.fit.tables import Key, curves_of, read_tables, samples_of
from hetrl_profiler.fit.transfer import fit_typical
from hetrl_profiler.fit.trees import boosting_of, shared_boosting_of

FACTS = {
    "attribution": "Contains measurement data from NVIDIA ai-dynamo/aiconfigurator (Apache-2.0) "
    "and Microsoft vidur (MIT)",
    "sources": {
        "aic-*": "github.com/ai-dynamo/aiconfigurator @095f58a51c, aic-core systems data (Apache-2.0)",
        "vidur-*": "github.com/microsoft/vidur @7d47513363, data/profiling (MIT)",
    },
}
MAX_ROWS = 20_000
"""Rows per model: dense series over num_tokens are thinned at random."""
FULL_DTYPES = ("bf16", "fp8")


def settings() -> dict[str, object]:
    """Return everything chosen by hand that the fits depend on; kept in the file, so that a stale one is noticed."""
    chip = Chip(flops_per_second=1e14, memory_bytes_per_second=1e12, num_multiprocessors=100, l2_bytes=5e7)
    num_features = {}
    for operator, names in DIMENSIONS.items():
        work = work_of(operator, np.full((len(names), 1), 64.0), 2.0, chip)
        num_features[operator] = features(work, np.ones(1), np.zeros(1), chip).shape[1]
    return {
        "terms": {name: list(terms) for name, terms in TERMS.items()},
        "powers": {"default": DEFAULT_POWER, **POWERS},
        "num_serial": dict(NUM_SERIAL),
        "num_features": num_features,
        "size_weight": roofline.SIZE_WEIGHT,
        "trees": {name: boosting_of(name)._asdict() for name in DIMENSIONS},
        "shared_trees": {name: shared_boosting_of(name)._asdict() for name in DIMENSIONS},
        "min_samples_leaf": trees.MIN_SAMPLES_LEAF,
        "feature_share": trees.FEATURE_SHARE,
        "max_rows": [MAX_ROWS, transfer.ROWS_PER_DEVICE, roofline.ROWS_OF_A_DEVICE],
        "intervals": [operators.NUM_FOLDS, operators.NUM_BINS, operators.LARGEST],
        "links": [links.MAX_KNOTS, links.LARGEST, links.NUM_NEIGHBOURS, links.UNKNOWN_SPREAD, links.LEAST_BEYOND],
    }


def fit_library(samples: dict[Key, Samples]) -> list[OperatorModel]:
    """Fit a model per (device, operator, dtype), and the typical ones."""
    models = []
    for operator in DIMENSIONS:
        for dtype in FULL_DTYPES:
            known = [thinned(each) for (_, name, kind), each in samples.items() if (name, kind) == (operator, dtype)]
            if not known:
                continue
            for each in known:
                models.append(fit_operator(each))
                print(f"{each.device} {operator} {dtype}: {models[-1].facts}", flush=True)
            models.append(fit_typical(known))
            print(f"typical {operator} {dtype}: {models[-1].facts}", flush=True)
    return models


def thinned(samples: Samples) -> Samples:
    """At most `MAX_ROWS` rows; rows of eager torch series give way first."""
    if len(samples) <= MAX_ROWS:
        return samples
    series = samples.engine == 2
    room = MAX_ROWS - int((~series).sum())
    rows = np.flatnonzero(series)
    kept = np.random.default_rng(0).permutation(rows)[: max(room, 4000)]
    return samples.take(np.sort(np.concatenate([np.flatnonzero(~series), kept])))


def main(argv: Sequence[str] | None = None) -> int:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    tables = read_tables(args.data)
    write_library(args.out, fit_library(samples_of(tables)), curves_of(tables), {**FACTS, "settings": settings()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
