"""Check a job file, or a plan, and report every problem at once.

A job is checked for its form, models, devices, links and limits; what the file leaves open is listed as assumed. A
plan is checked against its schema, every hard rule, and the memory of every device and host; a prediction that
is another than the cost model's is noted on stderr. Exit code 0: right,
2: wrong, 3: right but it cannot fit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from hetrl.cost.evaluate import evaluate
from hetrl.cost.residency import plan_memory
from hetrl.cost.unit import UnitCosts
from hetrl.errors import EXIT_INFEASIBLE, EXIT_INPUT, EXIT_OK, Problem, SpecError
from hetrl.plan.plan import Plan
from hetrl.plan.rules import plan_problems
from hetrl.spec.job import Job
from hetrl.spec.rules import valid_tensor_degrees
from hetrl.tools.cli import run_command
from hetrl.tools.job_or_plan import note_another_prediction, read_job_or_plan
from hetrl.tools.memory_text import memory_problems
from hetrl.tools.plan import read_cost_model
from hetrl.units import format_bytes
from hetrl.workload.outlook import fleet_outlook

NEEDS_WARM_START = (
    "optimizer.constraints.keep_layout: layouts are kept from a plan; hetrl plan refuses this job without --warm-start"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``hetrl validate``."""
    parser.add_argument("config", type=Path, help="job file (YAML) or plan.json")
    parser.add_argument("--models", type=Path, help="cost model that the plan was made with (default: built-in)")
    parser.add_argument("--strict", action="store_true", help="warnings count as problems")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Check and report."""
    try:
        job, plan = read_job_or_plan(args.config)
    except SpecError as error:
        if not args.json:
            raise
        print(json.dumps({"valid": False, "problems": entries(error.problems)}, indent=2))
        return EXIT_INPUT
    if plan is None and job.optimizer.constraints.keep_layout:
        job = replace(job, warnings=(*job.warnings, NEEDS_WARM_START))
    problems = plan_problems(job, plan) if plan is not None else []
    unfit = memory_findings(job, plan if not problems else None) if plan is None or not problems else []
    if plan is not None and not problems and not unfit:
        model = read_cost_model(args.models)
        note_another_prediction(
            args.config, model, evaluate(model.with_links(job), plan, UnitCosts(model, job.precision))
        )
    code = EXIT_INPUT if problems or (args.strict and job.warnings) else EXIT_INFEASIBLE if unfit else EXIT_OK
    if args.json:
        print(json.dumps(report(job, problems, unfit), indent=2))
    else:
        print_report(job, problems, unfit, kind="plan" if plan is not None else "job")
    return code


def memory_findings(job: Job, plan: Plan | None) -> list[Problem]:
    """Return where memory cannot suffice: exactly for a plan, by necessary conditions for a job."""
    if plan is not None:
        return memory_problems(job, plan_memory(job, plan))
    return fleet_outlook(job)


def tensor_degrees(job: Job) -> dict[str, list[int]]:
    """Return the tensor degrees that each role's model allows inside one node of the fleet."""
    largest = max(node.num_devices for node in job.topology.nodes)
    return {role: list(valid_tensor_degrees(model, largest)) for role, model in job.workflow.roles.items()}


def entries(found: Iterable[Problem]) -> list[dict[str, str]]:
    """Return problems for machines."""
    return [{"path": p.path, "message": p.message, "found": p.found, "valid": p.valid, "rule": p.rule} for p in found]


def report(job: Job, problems: list[Problem], unfit: list[Problem]) -> dict[str, object]:
    """Return everything that was found, for machines."""
    return {
        "valid": not problems and not unfit,
        "problems": entries(problems),
        "memory": entries(unfit),
        "warnings": list(job.warnings),
        "assumed": dict(job.assumed),
        "tensor_degrees": tensor_degrees(job),
        "num_devices": job.topology.num_devices,
    }


def print_report(job: Job, problems: list[Problem], unfit: list[Problem], *, kind: str) -> None:
    """Print everything that was found, for people."""
    for problem in (*problems, *unfit):
        print(f"problem: {problem}")
    for warning in job.warnings:
        print(f"warning: {warning}")
    memory = sum(node.num_devices * node.device_type.memory_bytes for node in job.topology.nodes)
    print(f"fleet: {fleet_text(job)}, {format_bytes(memory)} of device memory")
    for role, model in job.workflow.roles.items():
        degrees = " ".join(map(str, tensor_degrees(job)[role]))
        print(f"{role}: {model.name}, {model.num_parameters:,} parameters, tensor degrees {degrees}")
    print(f"assumed ({len(job.assumed)}):")
    for path, value in job.assumed.items():
        print(f"  {path} = {value}")
    verdict = "wrong" if problems else "cannot fit" if unfit else "valid"
    print(f"{kind}: {verdict}")


def fleet_text(job: Job) -> str:
    """Devices by type, with the nodes that they are in: ``24 devices (16 H100 in 2 nodes, 8 L4 in 1 node)``."""
    devices: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    for node in job.topology.nodes:
        devices[node.device_type.name] += node.num_devices
        nodes[node.device_type.name] += 1
    types = (f"{n} {kind} in {nodes[kind]} node{'s' * (nodes[kind] > 1)}" for kind, n in devices.items())
    return f"{job.topology.num_devices} devices ({', '.join(types)})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hetrl validate``."""
    return run_command(add_arguments, run, argv, prog="hetrl validate", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
