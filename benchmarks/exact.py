"""Proofs of the exact solver: against enumeration, on the benchmark instances, and what they say of the hybrid search.

    python -m benchmarks.exact [--json FILE] [--cache FILE] [--brute-force N] [--small N] [--proofs NAME ...]

Every instance is one line of the cache, so that a run that was stopped goes on where it was. Times are those of a
process of its own that proves one instance, its start and the hybrid search included.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.enumeration import TooLarge, enumerate_space, tiny_job
from benchmarks.prepared import prepared
from benchmarks.search import small_job
from hetrl.search.exact.milp import UNITS, solve_mps
from hetrl.search.exact.solver import solve_exact
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values
from hetrl.spec.presets import benchmark_instance, benchmark_names

PROOFS = {
    "guide20": "guide20_ppo",
    "paper64_lan/GRPO": "paper64_grpo",
    "paper64_lan/PPO": "paper64_ppo",
    "paper64_uniform_wan/GRPO": "paper64_uniform_wan_grpo",
    "paper64_uniform_wan/PPO": "paper64_uniform_wan_ppo",
    "paper64_wan/PPO": "paper64_wan_ppo",
    "fleet128/GRPO": "fleet128_grpo",
    "fleet128/PPO": "fleet128_ppo",
}
FLEET128 = (("H100", "NVLink-900G"),) * 6 + (("A100-80GB", "NVLink-600G"),) * 6 + (("L40S", "PCIe-Gen4"),) * 4
"""Nodes of eight devices: 128 of three types."""
GAPS = {"fleet128/GRPO": 0.03, "fleet128/PPO": 0.03}
"""Gaps that are good enough; none elsewhere."""
LONGEST_SECONDS = 1800.0
Row = dict[str, Any]


class Cache:
    """Rows of finished instances, one JSON line each; without a file they are kept in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self.rows[row["key"]] = row

    def row(self, key: str, work: Callable[[], Row]) -> Row:
        """Return an instance's row, worked out if it is not there."""
        if key not in self.rows:
            self.rows[key] = {"key": key, **work()}
            print(self.rows[key], flush=True)
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(self.rows[key]) + "\n")
        return self.rows[key]


def fleet_job(name: str) -> Job:
    """A benchmark instance, or Llama-3-8B in every role on 128 devices of three types."""
    if not name.startswith("fleet128"):
        return benchmark_instance(name, {"optimizer.max_search_seconds": 600})
    nodes = [
        {"id": f"node-{number:02d}", "gpus": 8, "type": kind, "interconnect": link, "network": "100Gbps"}
        for number, (kind, link) in enumerate(FLEET128)
    ]
    algorithm = name.partition("/")[2]
    roles = ("actor", "reward", "reference", "critic")[: 4 if algorithm == "PPO" else 3]
    workflow = {"algorithm": algorithm, **{f"{role}_model": "Llama-3-8B" for role in roles}}
    batch = {"num_prompts": 512 if algorithm == "PPO" else 64, "responses_per_prompt": 8 if algorithm == "GRPO" else 1}
    return job_from_values(
        {"workflow": workflow, "cluster_topology": {"nodes": nodes}, "batch": batch},
        source=name,
        overrides={"optimizer.max_search_seconds": 600},
    )


def solve_row(job: Job, gap: float = 0.0) -> Row:
    """Solve one job: status, optimum, bound, the plan that is returned, what the hybrid search found, work done."""
    job, costs = prepared(job)
    result = solve_exact(job, costs, gap=gap, time_limit_seconds=LONGEST_SECONDS)
    row: Row = {"status": result.status, "counts": dict(result.counts)}
    if result.plan is not None and result.estimate is not None:
        row.update(
            objective=result.objective,
            lower_bound=result.lower_bound,
            proven_gap_percent=100 * result.gap,
            plan_step_seconds=result.estimate.step_seconds,
            hybrid_gap_percent=100 * (result.seed_objective / result.objective - 1),
        )
    if result.certificate is not None:
        row["highs_objective"] = solve_mps(result.certificate.mps, "highs").objective * result.objective / UNITS
    return row


def compared(seed: int) -> Row:
    """Compare enumeration, solver and certificate on a tiny job."""
    job, costs = prepared(tiny_job(seed))
    kind = job.workflow.algorithm + (" async" if job.staleness else "")
    try:
        best, evaluated = enumerate_space(job, costs)
    except TooLarge:
        return {"skipped": True}
    result = solve_exact(job, costs)
    if math.isinf(best) or result.plan is None:
        same = math.isinf(best) and result.status == "infeasible"
        return {"workflow": kind, "difference": 0.0 if same else 1.0, "infeasible": True, "evaluated": evaluated}
    assert result.certificate is not None
    figures = (result.objective, result.certificate.optimum_seconds)
    difference = max(abs(each / best - 1.0) for each in figures)
    groups = len(result.plan.groups)
    return {"workflow": kind, "difference": difference, "infeasible": False, "evaluated": evaluated, "groups": groups}


def proof(name: str) -> Row:
    """Prove one instance in a process of its own: wall and CPU seconds, memory, and its row."""
    code = (
        "import json, sys; from benchmarks.exact import GAPS, fleet_job, solve_row\n"
        "print(json.dumps(solve_row(fleet_job(sys.argv[1]), GAPS.get(sys.argv[1], 0.0))))"
    )
    with tempfile.TemporaryFile() as output:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code, name], check=True, stdout=output)
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        output.seek(0)
        row: Row = json.loads(output.read())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**row, "wall_seconds": wall, "cpu_seconds": cpu, "peak_memory_bytes": after.ru_maxrss * 1024.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cache", type=Path, help="JSON lines, one per instance; finished ones are not run again")
    parser.add_argument("--brute-force", type=int, default=300, metavar="N", help="tiny jobs to enumerate")
    parser.add_argument("--small", type=int, default=40, metavar="N", help="small random jobs for the hybrid's gap")
    parser.add_argument("--proofs", nargs="*", default=None, metavar="NAME", help="benchmark instances to prove")
    args = parser.parse_args()
    cache = Cache(args.cache)
    tiny: list[Row] = []
    seed = 0
    while len(tiny) < args.brute_force:
        row = cache.row(f"tiny {seed}", lambda seed=seed: compared(seed))  # type: ignore[misc]
        tiny += [row] if "difference" in row else []
        seed += 1
    names = args.proofs
    if names is None:
        names = [*(name for name in benchmark_names() if not name.startswith("synthetic")), *GAPS]
    proofs = {name: cache.row(name, lambda name=name: proof(name)) for name in names}  # type: ignore[misc]
    rows = [cache.row(f"small {seed}", lambda seed=seed: solve_row(small_job(seed))) for seed in range(args.small)]  # type: ignore[misc]
    gaps = [row["hybrid_gap_percent"] for row in (*proofs.values(), *rows) if row["status"] == "optimal"]
    result: Row = {
        "brute_force_instances": len(tiny),
        "brute_force_max_difference": max((row["difference"] for row in tiny), default=None),
        "brute_force_workflows": {
            kind: sum(row["workflow"] == kind for row in tiny) for kind in sorted({row["workflow"] for row in tiny})
        },
        "brute_force_infeasible": sum(row["infeasible"] for row in tiny),
        "proof_seconds": {PROOFS[name]: row["wall_seconds"] for name, row in proofs.items() if name in PROOFS},
        "proof_cpu_seconds": {PROOFS[name]: row["cpu_seconds"] for name, row in proofs.items() if name in PROOFS},
        "proof_status": {name: row["status"] for name, row in proofs.items()},
        "proven_gap_percent": {name: row.get("proven_gap_percent") for name, row in proofs.items()},
        "peak_memory_bytes": max((row["peak_memory_bytes"] for row in proofs.values()), default=None),
        "hybrid_gap_percent": {
            "median": statistics.median(gaps) if gaps else None,
            "worst": max(gaps, default=None),
            "instances": len(gaps),
        },
    }
    print(json.dumps(result, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
