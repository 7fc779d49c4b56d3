"""Show what a plan keeps in memory, device by device and phase by phase, and whether it fits.

For a job file it is the plan that `hetrl plan` finds with the hybrid search; if none fits, the reasons and the smallest
changes are printed (exit code 3).
For a plan.json that does not fit, the first single change that makes it fit is named.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hetrl.cost.model import CostModel
from hetrl.cost.residency import MemoryUse, plan_memory
from hetrl.cost.unit import UnitCosts
from hetrl.errors import EXIT_INFEASIBLE, EXIT_OK, SpecError
from hetrl.plan.plan import Plan
from hetrl.plan.rules import plan_problems
from hetrl.search.hybrid import solve
from hetrl.spec.job import Job
from hetrl.tools.cli import run_command
from hetrl.tools.job_or_plan import read_job_or_plan
from hetrl.tools.memory_text import devices_needed, memory_lines, memory_problems, rows, smallest_change
from hetrl.workload.outlook import fleet_outlook


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``hetrl memory``."""
    parser.add_argument("config", type=Path, help="job file (YAML) or plan.json")
    parser.add_argument("--budget", type=int, help="of a job file's search; overrides optimizer.budget")
    parser.add_argument("--seconds", type=float, help="longest search; overrides optimizer.max_search_seconds")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Show the memory of a plan."""
    limits = {"optimizer.budget": args.budget, "optimizer.max_search_seconds": args.seconds}
    given = {path: limit for path, limit in limits.items() if limit is not None}
    job, plan = read_job_or_plan(args.config, given)
    if plan is None:
        necessary = fleet_outlook(job)
        for problem in necessary:
            print(f"problem: {problem}", file=sys.stderr)
        plan = searched_plan(job)
    else:
        broken = plan_problems(job, plan)
        if broken:
            raise SpecError(broken)
    use = plan_memory(job, plan)
    problems = memory_problems(job, use)
    change = smallest_change(job, plan) if problems else ""
    more = devices_needed(job, plan) if problems else []
    if args.json:
        print(json.dumps(as_dict(job, use, [str(problem) for problem in problems], change, more), indent=2))
    else:
        print("\n".join(memory_lines(job, use)))
        for problem in problems:
            print(f"problem: {problem}")
        if problems:
            print(f"would fit with: {change or 'no single change; plan the job again'}")
            for line in more:
                print(f"would fit with: {line}")
        else:
            print("fits: every device, host and KV pool")
    return EXIT_INFEASIBLE if problems else EXIT_OK


def searched_plan(job: Job) -> Plan:
    """Return the plan that ``hetrl plan`` finds with the hybrid search.

    Raises
    ------
    InfeasibleError
        With reasons if nothing fits.
    """
    model = CostModel.builtin()
    job = model.with_links(job)
    return solve(job, UnitCosts(model, job.precision)).plan


def as_dict(job: Job, use: MemoryUse, problems: list[str], change: str, more: list[str]) -> dict[str, object]:
    """Return the memory of a plan for machines, in bytes."""
    return {
        "fits": not problems,
        "problems": problems,
        "smallest_change": change,
        "devices_needed": more,
        "rows": [
            {
                "devices": list(row.devices),
                "node": row.node,
                "type": row.type,
                "phase": row.phase,
                "needed_bytes": row.needed_bytes,
                "kv_pool_bytes": row.reserved_bytes,
                "limit_bytes": row.limit_bytes,
                "verdict": row.verdict,
                "dominant_term": row.dominant_term,
            }
            for row in rows(job, use)
        ],
        "host_bytes": {job.topology.nodes[node].id: needed for node, needed in use.hosts.items()},
        "host_limit_bytes": {job.topology.nodes[node].id: limit for node, limit in use.host_limits.items()},
        "kv_tokens": {task: list(pools) for task, pools in use.kv_tokens.items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hetrl memory``."""
    return run_command(add_arguments, run, argv, prog="hetrl memory", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
