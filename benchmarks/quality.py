"""Quality of the hybrid search's plans: ``python -m benchmarks.quality [--out FILE] [--only NAME ...]``.

Every instance is planned with the default budget, five times with other seeds and twenty times the budget, by simpler
planners, and with single levels switched off (`hetrl.search.baselines`). One line of JSON per instance is appended to
the file as soon as it is known, and instances that are already there are skipped, so that the study can be resumed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.prepared import prepared
from hetrl.cost.evaluate import evaluate
from hetrl.cost.unit import UnitCosts
from hetrl.errors import InfeasibleError
from hetrl.search.baselines.greedy import greedy
from hetrl.search.baselines.pinned import LEVELS_OFF
from hetrl.search.baselines.restarts import random_restarts
from hetrl.search.chains import finish
from hetrl.search.constraints import NodeRules
from hetrl.search.context import Candidate, SearchContext
from hetrl.search.halving import default_budget
from hetrl.search.hybrid import solve
from hetrl.search.result import SearchResult
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values
from hetrl.spec.presets import benchmark_instance

DEFAULT_FILE = Path(__file__).parent / "results" / "quality.jsonl"
LONGER = 20
LONG_SEEDS = (1, 2, 3, 4, 5)
NO_TIME_LIMIT = {"optimizer.max_search_seconds": 36_000}
TOLERANCE = 1e-9
"""Relative difference below which two plans are equally good."""

FLEETS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "mixed16": (("H100", 8), ("L40S", 8)),
    "mixed24": (("H100", 8), ("A100-80GB", 8), ("L40S", 8)),
    "a100x32": (("A100-80GB", 8),) * 4,
    "mixed32": (("H100", 8), ("A100-40GB", 8), ("A100-40GB", 8), ("L40S", 8)),
    "mixed48": (("A100-80GB", 8),) * 2 + (("L40S", 8),) * 2 + (("L4", 8),) * 2,
    "mixed96": (("H100", 8),) * 4 + (("L40S", 8),) * 8,
    "mixed128": (("H100", 8),) * 8 + (("A100-80GB", 8),) * 8,
    "mixed256": (("H100", 8),) * 8 + (("A100-80GB", 8),) * 8 + (("L40S", 8),) * 16,
}
"""Fleets of the study beside the benchmark instances, node by node."""
NVLINK = {"H100": "NVLink-900G", "A100-80GB": "NVLink-600G", "A100-40GB": "NVLink-600G"}
MODELS = {"mixed16": "Qwen2.5-1.5B", "mixed24": "Qwen2.5-7B", "mixed96": "Qwen2.5-14B"}
"""Model of every role; Llama-3-8B where a fleet names none."""


def study_names() -> list[str]:
    """All instances, cheap ones first: PPO and GRPO, 16 to 256 devices, in one building and over long distances."""
    guide = [f"guide{fleet}/{model}/PPO" for fleet in "ABC" for model in ("Llama-3-8B", "Llama-3-70B", "Qwen2.5-72B")]
    own = [f"{fleet}-{net}/{algorithm}" for algorithm in ("GRPO", "PPO") for fleet in FLEETS for net in ("lan", "wan")]
    large = {"mixed96", "mixed128", "mixed256"}  # a search of six tasks on as many devices takes minutes at 20 x budget
    own = [name for name in own if name.partition("-")[0] not in large or name.endswith("GRPO")]
    paper = [f"paper64_{net}/{algorithm}" for algorithm in ("GRPO", "PPO") for net in ("lan", "uniform_wan", "wan")]
    return ["guide20", *guide, *own, *paper]


def study_job(name: str) -> Job:
    """Return an instance of the study by name."""
    fleet, _, rest = name.partition("-")
    if fleet not in FLEETS:
        return benchmark_instance(name, NO_TIME_LIMIT)
    network, _, algorithm = rest.partition("/")
    nodes = [
        {
            "id": f"node-{number:02d}",
            "gpus": count,
            "type": kind,
            "interconnect": NVLINK.get(kind, "PCIe-Gen4"),
            "network": "400Gbps" if kind in NVLINK else "100Gbps",
            **({"region": f"region-{number * 3 // len(FLEETS[fleet])}"} if network == "wan" else {}),
        }
        for number, (kind, count) in enumerate(FLEETS[fleet])
    ]
    topology: dict[str, object] = {"nodes": nodes}
    if network == "wan":
        topology["network"] = {"wan": {"bandwidth": "10Gbps", "latency": "8ms"}}
    model = MODELS.get(fleet, "Llama-3-8B")
    workflow = {"algorithm": algorithm, "actor_model": model, "reward_model": model, "reference_model": model}
    if algorithm == "PPO":
        workflow["critic_model"] = model
    batch = {"num_prompts": 512 if algorithm == "PPO" else 64, "responses_per_prompt": 8 if algorithm == "GRPO" else 1}
    return job_from_values(
        {"workflow": workflow, "cluster_topology": topology, "batch": batch}, source=name, overrides=NO_TIME_LIMIT
    )


def step_seconds(context: SearchContext, candidate: Candidate | None) -> float | None:
    """Return the step time of a candidate's best placement."""
    return None if candidate is None else finish(NodeRules(context), candidate)[1]


def searched(job: Job, costs: UnitCosts, **optimizer: Any) -> SearchResult:
    """Return the search's answer with other settings."""
    return solve(replace(job, optimizer=replace(job.optimizer, **optimizer)), costs)


def study(name: str) -> dict[str, Any]:
    """Plan one instance in every way; seconds per step, None where a planner finds nothing that fits."""
    start = time.process_time()
    job, costs = prepared(study_job(name))
    result = solve(job, costs)
    default_cpu = time.process_time() - start
    spent = result.counts["moves"]
    budget = LONGER * (job.optimizer.budget or default_budget(job.topology.num_devices))
    longer = [searched(job, costs, seed=seed, budget=budget).estimate.step_seconds for seed in LONG_SEEDS]
    context = SearchContext(job, costs)
    others = {
        "greedy": step_seconds(context, greedy(context)),
        "random_restarts": step_seconds(context, random_restarts(context, num_draws=spent, seed=0)),
    }
    for level, planner in LEVELS_OFF.items():
        try:
            others[level] = evaluate(job, planner(job, costs), costs).step_seconds
        except InfeasibleError:
            others[level] = None
    return {
        "name": name,
        "num_devices": job.topology.num_devices,
        "step_seconds": result.estimate.step_seconds,
        "lower_bound": result.lower_bound,
        "longer": longer,
        "others": others,
        "moves": spent,
        "cpu_seconds_default": round(default_cpu, 2),
        "cpu_seconds": round(time.process_time() - start, 1),
        "commit": commit(),
    }


def commit() -> str:
    """Return the checked-out commit, or nothing outside a checkout."""
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the distance to the best of the longer runs, and how often each simpler planner was better."""
    listed = list(rows)
    excess = {row["name"]: row["step_seconds"] / min(row["step_seconds"], *row["longer"]) - 1 for row in listed}
    planners = sorted({planner for row in listed for planner in row["others"]})
    beaten = {
        planner: [
            row["name"]
            for row in listed
            if row["others"].get(planner) is not None and row["others"][planner] < row["step_seconds"] * (1 - TOLERANCE)
        ]
        for planner in planners
    }
    ratios = {
        planner: [
            row["others"][planner] / row["step_seconds"] for row in listed if row["others"].get(planner) is not None
        ]
        for planner in planners
    }
    return {
        "instances": len(listed),
        "within_1_percent": sum(each <= 0.01 for each in excess.values()),
        "worst_excess_percent": 100 * max(excess.values(), default=0.0),
        "excess_percent": {name: 100 * each for name, each in excess.items() if each > TOLERANCE},
        "better_than_the_search": beaten,
        "median_ratio": {planner: statistics.median(each) for planner, each in ratios.items() if each},
        "infeasible": {planner: len(listed) - len(each) for planner, each in ratios.items()},
        "cpu_seconds": sum(row["cpu_seconds"] for row in listed),
        "commits": sorted({row["commit"] for row in listed}),
    }


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a results file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_FILE)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these instances")
    parser.add_argument("--summary", action="store_true", help="only sum up what the file holds")
    args = parser.parse_args()
    known = {row["name"] for row in read_rows(args.out)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for name in [] if args.summary else args.only or study_names():
        if name in known:
            continue
        row = study(name)
        with args.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        worst = row["step_seconds"] / min(row["step_seconds"], *row["longer"]) - 1
        print(f"{name:32s} {row['step_seconds']:9.3f} s  +{100 * worst:.2f} %  {row['cpu_seconds']} CPU s", flush=True)
    print(json.dumps(summary(read_rows(args.out)), indent=1))


if __name__ == "__main__":
    main()
