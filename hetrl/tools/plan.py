"""Search the best plan for a job and write plan.json.

The plan says which tasks share devices, how each is parallelised, where every shard sits, what is offloaded, and
what all of it is predicted to take. Exit code 3 and an explanation if nothing fits.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.errors import EXIT_OK, Problem, SpecError
from hetrl.plan.capabilities import unsupported
from hetrl.plan.document import PlanDocument, describe_devices, describe_tasks
from hetrl.search.hybrid import SearchResult, solve
from hetrl.spec.job import Job
from hetrl.spec.load import load_job
from hetrl.spec.yaml_text import parse_yaml
from hetrl.tools.cli import run_command
from hetrl.tools.plan_notes import offload_notes
from hetrl.tools.plan_text import plan_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``hetrl plan``."""
    parser.add_argument("--config", required=True, type=Path, help="job file (YAML)")
    parser.add_argument("--out", type=Path, help="where to write plan.json; without it nothing is written")
    parser.add_argument("--models", type=Path, help="cost model written by hetrl fit or refit (default: built-in)")
    parser.add_argument("--solver", choices=("hybrid", "ilp"), help="overrides optimizer.solver")
    parser.add_argument("--seed", type=int, help="overrides optimizer.seed")
    parser.add_argument("--budget", type=int, help="cost evaluations to spend; overrides optimizer.budget")
    parser.add_argument("--max-search-seconds", type=float, help="overrides optimizer.max_search_seconds")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="override any key, e.g. cluster_topology.nodes[1].type=A100-40GB",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON instead of tables")
    parser.add_argument("--quiet", action="store_true", help="no progress on the terminal")


def run(args: argparse.Namespace) -> int:
    """Plan, report, write."""
    job = load_job(args.config, overrides=_overrides(args))
    model = read_cost_model(args.models)
    job = model.with_links(job)
    costs = UnitCosts(model, job.precision)
    result = solve(job, costs, progress=None if args.quiet or args.json else _progress)
    document = document_of(job, result, costs, config_folder=_relative_folder(args.config, args.out))
    if args.json:
        print(json.dumps(document.to_json(), indent=1))
    else:
        print(plan_text(job, result, document))
    if args.out is not None:
        document.write(args.out)
        if not args.json:
            print(f"\nwritten: {args.out}")
    return EXIT_OK


def read_cost_model(path: Path | None) -> CostModel:
    """Return the cost model of a file, or the built-in one."""
    return CostModel.load(path) if path is not None else CostModel.builtin()


def document_of(job: Job, result: SearchResult, costs: UnitCosts, *, config_folder: str) -> PlanDocument:
    """Plan.json of a search result."""
    estimate = result.estimate
    nodes = [node.id for node in job.topology.nodes]
    return PlanDocument(
        plan=result.plan,
        config=job.config,
        config_folder=config_folder,
        devices=describe_devices(job),
        tasks=describe_tasks(job),
        prediction=estimate.to_json(nodes),
        provenance=estimate.provenance,
        search={
            "solver": job.optimizer.solver,
            "seed": job.optimizer.seed,
            "objective": job.optimizer.objective,
            "lower_bound_seconds": result.lower_bound,
            "gap": result.gap if result.lower_bound > 0 else None,
            "stopped_by_time": result.stopped_by_time,
            "interrupted": result.interrupted,
            "cost_model": costs.model.source,
            "counts": dict(result.counts),
        },
        assumed=job.assumed,
        warnings=job.warnings,
        notes=offload_notes(job, result.plan),
        unsupported=tuple(str(problem) for problem in unsupported(job, result.plan)),
    )


def _overrides(args: argparse.Namespace) -> dict[str, object]:

    overrides: dict[str, object] = {}
    for text in args.set:
        path, equals, value = text.partition("=")
        if not equals or not path:
            raise SpecError(Problem(path="--set", message="not PATH=VALUE", found=text, valid="optimizer.seed=1"))
        overrides[path] = parse_yaml(value, "--set") if value else None
    given = {
        "solver": args.solver,
        "seed": args.seed,
        "budget": args.budget,
        "max_search_seconds": args.max_search_seconds,
    }
    overrides.update({f"optimizer.{key}": value for key, value in given.items() if value is not None})
    return overrides


def _relative_folder(config: Path, out: Path | None) -> str:
    """Return the configuration's folder as seen from plan.json, so that equal jobs give equal plans anywhere."""
    base = out.parent if out is not None else Path()
    return os.path.relpath(config.resolve().parent, base.resolve())


def _progress(stage: str, cost: float) -> None:
    if sys.stderr.isatty():
        shown = f"{cost:.3g} s per step" if cost < 1e11 else "nothing fits yet"
        print(
            f"\r\033[Ksearching: {stage}, best so far {shown}",
            end="" if stage != "polish" else "\n",
            file=sys.stderr,
            flush=True,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``hetrl plan`` and ``python -m hetrl.tools.plan``."""
    return run_command(add_arguments, run, argv, prog="hetrl plan", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
