"""Which rows of end_to_end.csv are scored: ``python -m benchmarks.eligible --data DIR`` writes the committed list.

A row is eligible if its GPU has operator data, its model is in the catalogue (with the published shapes of
``hetrl/catalog/fitted/names.yaml``), its parallelism is stated, its workload is a training step, a generation or an RL
step, and it is not marked as suspect. Whether hetrl can predict it plays no part. One row per result: rates that repeat
a time in another unit (model_tflops_per_gpu, tokens_per_s_per_gpu of an RL step) are left out.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hetrl.cost.published import Table, read_table
from hetrl.cost.scenarios import Inexpressible, found_model
from hetrl.files import write_text_atomically

LIST = Path(__file__).parent / "data" / "eligible_end_to_end.csv"
GPUS = ("a100", "a100_sxm", "h100_sxm", "h200_sxm", "l40s", "b200_sxm")
METRICS: Mapping[str, tuple[str, ...]] = {
    "train_step": ("tokens_per_s", "tokens_per_s_per_gpu", "iteration_time"),
    "generation_batch": ("batch_latency",),
    "generation_throughput": ("output_tokens_per_s", "output_tokens_per_s_per_gpu"),
    "rl_step": ("total_step_time", "step_time", "avg_time_1024_prompts"),
}
KEY = (
    "category", "gpu", "num_gpus", "model", "precision", "framework", "algo", "sync_mode", "train_parallel",
    "gen_parallel", "global_batch", "micro_batch", "seq_or_input_len", "output_len", "mean_seq_len", "metric",
)  # fmt: skip


def is_eligible(row: Mapping[str, str]) -> bool:
    """Apply the rules to one row."""
    if row["suspect"] or row["gpu"] not in GPUS or row["metric"] not in METRICS.get(row["category"], ()):
        return False
    needed = {"train_step": ("train_parallel",), "rl_step": ("train_parallel", "gen_parallel")}
    if not all(row[name].strip() for name in needed.get(row["category"], ("gen_parallel",))):
        return False
    try:
        found_model(row["model"])
    except Inexpressible:
        return False
    return True


def rows_of(table: Table) -> list[dict[str, str]]:
    """All rows as mappings."""
    return [dict(zip(table.columns, cells, strict=True)) for cells in zip(*table.columns.values(), strict=True)]


def key_of(row: Mapping[str, str]) -> tuple[str, ...]:
    """What identifies a row in the committed list."""
    return tuple(row[name] for name in KEY)


def read_list() -> set[tuple[str, ...]]:
    """Keys of the committed list."""
    with LIST.open(newline="") as stream:
        return {key_of(row) for row in csv.DictReader(stream)}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args(argv)
    keys = [key_of(row) for row in rows_of(read_table(args.data / "end_to_end.csv")) if is_eligible(row)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(KEY)
    writer.writerows(dict.fromkeys(keys))
    write_text_atomically(LIST, stream.getvalue())
    print(f"{len(keys)} eligible rows, {len(set(keys))} keys")
    return 0


if __name__ == "__main__":
    sys.exit(main())
