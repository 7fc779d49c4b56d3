"""Time and quality of the hybrid search.

    python -m benchmarks.search [--json FILE] [--brute-force N] [--quality] [--no-times]

Times are of the whole `hetrl plan` process. Brute force: every grouping and every assignment of small random fleets,
costed with the same group costs. Quality: what `benchmarks.quality` has found. Gaps: distance to the
lower bound, which holds for every plan.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import yaml

from benchmarks.prepared import prepared
from benchmarks.quality import DEFAULT_FILE, read_rows, summary
from hetrl.errors import InfeasibleError
from hetrl.search.context import INFEASIBLE_COST, SearchContext
from hetrl.search.hybrid import solve
from hetrl.search.level1_grouping import set_partitions
from hetrl.search.level4_assignment import as_assignment
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values
from hetrl.spec.presets import benchmark_instance, benchmark_names, instance_values

TIMED = ("guide20", "paper64_wan/PPO", "synthetic1024", "synthetic4096")
SMALL_TYPES = ("H100", "A100-80GB", "A100-40GB", "L40S")
SMALL_MODELS = ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-7B", "Llama-3-8B")


def small_job(seed: int) -> Job:
    """A random job of two to three nodes with at most 8 devices, with GRPO or offline DPO."""
    rng = random.Random(seed)
    sizes = rng.choice([(1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (2, 2, 2), (4, 2, 1), (1, 1, 1)])
    nodes = [
        {
            "id": f"node-{number}",
            "gpus": size,
            "type": rng.choice(SMALL_TYPES),
            "interconnect": "PCIe-Gen4",
            "network": rng.choice(["10Gbps", "100Gbps", "400Gbps"]),
        }
        for number, size in enumerate(sizes)
    ]
    model = rng.choice(SMALL_MODELS)
    workflow: dict[str, object] = {"algorithm": "GRPO", "actor_model": model, "reference_model": model}
    if rng.random() < 0.3:
        workflow = {"algorithm": "DPO", "actor_model": model, "reference_model": model, "online": False}
    batch = {"num_prompts": rng.choice([16, 48, 64]), "max_response_tokens": 512}
    return job_from_values(
        {"workflow": workflow, "cluster_topology": {"nodes": nodes}, "batch": batch}, source=f"small {seed}"
    )


def brute_force(context: SearchContext) -> float:
    """Lowest cost over all groupings and all ways to give every device to a group."""
    best = float("inf")
    sizes = [node.num_devices for node in context.topology.nodes]
    for grouping in set_partitions(len(context.job.workflow.tasks)):
        ways = [list(_compositions(size, len(grouping))) for size in sizes]
        for split in product(*ways):
            counts = list(zip(*split, strict=True))
            if all(any(row) for row in counts):
                best = min(best, context.steps.cost(grouping, as_assignment(counts), best))
    return best


def _compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(total,)]
    return [(first, *rest) for first in range(total + 1) for rest in _compositions(total - first, parts - 1)]


def brute_force_study(number: int) -> dict[str, object]:
    """Compare search and enumeration on random small jobs."""
    equal, worst, infeasible, lost = 0, 0.0, 0, []
    for seed in range(number):
        job, costs = prepared(small_job(seed))
        best = brute_force(SearchContext(job, costs))
        try:
            # the search's own cost of an assignment, before shares are made exact, is what enumeration compares
            found = solve(job, costs).search_cost
        except InfeasibleError:
            infeasible += best >= INFEASIBLE_COST
            equal += best >= INFEASIBLE_COST
            continue
        excess = found / best - 1.0
        worst = max(worst, excess)
        if excess <= 1e-9:
            equal += 1
        else:
            lost.append([seed, excess])
    return {"instances": number, "equal": equal, "infeasible": infeasible, "worst_excess": worst, "missed": lost}


def growth_exponent(seconds: Mapping[str, float]) -> float:
    """Exponent e of seconds growing with devices to the e, from 1,024 to 4,096 devices."""
    return math.log(seconds["synthetic4096"] / seconds["synthetic1024"]) / math.log(4)


def gaps() -> dict[str, float]:
    """Gap to the lower bound in percent on every instance that fits, the two largest excepted."""
    found = {}
    for name in benchmark_names():
        if name.startswith("synthetic"):
            continue
        try:
            found[name] = 100 * solve(*prepared(benchmark_instance(name))).gap
        except InfeasibleError:
            continue
    return found


def plan_process(name: str) -> dict[str, float]:
    """Wall and CPU seconds and peak memory of one `hetrl plan` that plans an instance and writes plan.json."""
    with tempfile.TemporaryDirectory() as folder:
        config, out = Path(folder) / "job.yaml", Path(folder) / "plan.json"
        config.write_text(yaml.safe_dump(instance_values(name)))
        code = "import sys; from hetrl.tools.main import main; sys.exit(main())"
        command = [sys.executable, "-c", code, "plan", "--config", config, "--out", out, "--max-search-seconds", "600"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        step = float(json.loads(out.read_text())["prediction"]["step_seconds"])
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "peak_memory_bytes": after.ru_maxrss * 1024.0,
        "step_seconds": step,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--brute-force", type=int, default=100, metavar="N")
    parser.add_argument("--quality", action="store_true", help="sum up the quality study (benchmarks.quality)")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    result: dict[str, object] = {}
    if not args.no_times:
        runs = {name: [plan_process(name) for _ in range(args.repeats)] for name in TIMED}
        result["plan_wall_seconds"] = {
            name.partition("/")[0]: statistics.median(each["wall_seconds"] for each in rows)
            for name, rows in runs.items()
        }
        result["plan_cpu_seconds"] = {
            name.partition("/")[0]: statistics.median(each["cpu_seconds"] for each in rows)
            for name, rows in runs.items()
        }
        result["growth_exponent"] = growth_exponent(result["plan_cpu_seconds"])
        result["peak_memory_bytes"] = max(each["peak_memory_bytes"] for rows in runs.values() for each in rows)
    found = gaps()
    result["gap_percent"] = {
        "median": statistics.median(found.values()),
        "worst": max(found.values()),
        "instances": found,
    }
    if args.brute_force:
        result["brute_force"] = brute_force_study(args.brute_force)
    if args.quality:
        result["quality"] = summary(read_rows(DEFAULT_FILE))
    print(json.dumps(result, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
