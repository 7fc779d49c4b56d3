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
from hetrl.cost.work import DIMENSIONS
from hetrl_profiler.fit.operators import fit_operator
from hetrl_profiler.fit.samples import Samples
from hetrl_profiler.fit.tables import Key, curves_of, read_tables, samples_of
from hetrl_profiler.fit.transfer import fit_typical

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
    write_library(args.out, fit_library(samples_of(tables)), curves_of(tables), FACTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
