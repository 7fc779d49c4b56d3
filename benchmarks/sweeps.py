"""Replays of many scenarios: Numba against NumPy, and what a whole sweep costs.

    python -m benchmarks.sweeps [--json FILE]

Both decode the same draws; NumPy goes through the responses one by one, for all scenarios at once. CPU seconds of one
core, median of five; the first call of a process loads the compiled code or, on a fresh machine, compiles it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.prepared import prepared
from hetrl.cost.replays import replayed_steps
from hetrl.search.hybrid import solve
from hetrl.spec.presets import benchmark_instance

Array = NDArray[np.float64]
NUM_SCENARIOS = 512
LONGEST = 1024
SIZES = ((64, 16), (256, 64), (1024, 256))
SWEPT = ("guide20", "paper64_lan/GRPO", "synthetic1024")


def decoded_with_numpy(lengths: NDArray[np.int64], table: Array) -> tuple[Array, Array]:
    """What `replay_decoding` does, vectorised over scenarios."""
    num_scenarios, n = lengths.shape
    slots, rows = min(len(table), n), np.arange(num_scenarios)
    ends, starts = lengths[:, :slots].astype(np.float64), np.zeros((num_scenarios, slots))
    full, progress = np.zeros(num_scenarios), np.zeros(num_scenarios)
    for s in range(slots, n):
        first = ends.argmin(axis=1)
        full = ends[rows, first]
        progress += (full - starts[rows, first]) ** 2 / 2
        starts[rows, first], ends[rows, first] = full, full + lengths[:, s]
    progress += ((full[:, None] - starts) ** 2 / 2).sum(axis=1)
    share = np.divide(progress, slots * full, out=np.zeros_like(full), where=full > 0)
    seconds = full * at(table, slots, share)
    order = ends.argsort(axis=1)
    ends, starts = np.take_along_axis(ends, order, axis=1), np.take_along_axis(starts, order, axis=1)
    started, now = starts.sum(axis=1), full
    for k in range(slots):
        middle = (now + ends[:, k]) / 2 - started / (slots - k)
        seconds += (ends[:, k] - now) * at(table, slots - k, middle)
        now, started = ends[:, k], started - starts[:, k]
    return seconds, now


def at(table: Array, active: int, progress: Array) -> Array:
    """Iteration seconds at these contexts."""
    return np.interp(progress, np.linspace(0.0, LONGEST, table.shape[1]), table[active - 1])


def cpu_seconds(action: Callable[[], object], repeats: int = 5) -> float:
    """Median CPU seconds."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def compared(table: Array, responses: int) -> dict[str, float]:
    """Decode the same draws with both."""
    from hetrl_kernels.sweeps import replay_decoding

    lengths = np.random.default_rng(0).integers(1, LONGEST + 1, size=(NUM_SCENARIOS, responses))
    compiled = NUM_SCENARIOS / cpu_seconds(lambda: replay_decoding(lengths, table, LONGEST))
    vectorised = NUM_SCENARIOS / cpu_seconds(lambda: decoded_with_numpy(lengths, table))
    apart = np.abs(replay_decoding(lengths, table, LONGEST)[0] / decoded_with_numpy(lengths, table)[0] - 1).max()
    print(
        f"{responses:5} responses, {len(table):3} slots: Numba {compiled:10,.0f} replays per core second, "
        f"NumPy {vectorised:8,.0f} ({compiled / vectorised:.1f} times fewer), {apart:.0e} apart"
    )
    return {
        "responses": responses,
        "slots": len(table),
        "numba_replays_per_core_second": compiled,
        "numpy_replays_per_core_second": vectorised,
        "largest_relative_difference": float(apart),
    }


def swept(name: str) -> float:
    """Whole steps per core second of an instance's plan, preparation included."""
    job, costs = prepared(benchmark_instance(name))
    plan = solve(job, costs).plan
    rate = NUM_SCENARIOS / cpu_seconds(lambda: replayed_steps(job, plan, costs, num_scenarios=NUM_SCENARIOS), 3)
    print(f"{name:>18}: {rate:10,.0f} whole steps per core second, preparation included")
    return rate


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    start = time.process_time()
    from hetrl_kernels.sweeps import replay_decoding

    table = np.linspace(1e-2, 4e-2, 256)[:, None] * np.linspace(1.0, 1.3, 17)[None, :]
    replay_decoding(np.ones((1, 2), dtype=np.int64), table, LONGEST)
    figures: dict[str, object] = {"numba_first_call_seconds": time.process_time() - start}
    figures["decoding"] = [compared(table[:slots].copy(), responses) for responses, slots in SIZES]
    figures["whole_steps_per_core_second"] = {name: swept(name) for name in SWEPT}
    print(f"first call of a process: {figures['numba_first_call_seconds']:.2f} s")
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
