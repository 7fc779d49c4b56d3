"""Search the best plan for a job and write plan.json.

The plan says which tasks share devices, how each is parallelised, where every shard sits, what is offloaded, and
what all of it is predicted to take. Exit code 3 and an explanation if nothing fits.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.errors import EXIT_OK, Problem, SpecError
from hetrl.files import check_writable
from hetrl.plan.capabilities import unsupported
from hetrl.plan.document import PlanDocument, describe_devices, describe_tasks, read_plan
from hetrl.plan.plan import Plan
from hetrl.plan.rules import plan_problems
from hetrl.search.chains import objective_of
from hetrl.search.halving import default_budget
from hetrl.search.result import SearchResult
from hetrl.search.solvers import solve
from hetrl.spec.job import Job
from hetrl.spec.load import MIP_SOLVERS, OBJECTIVES, SOLVERS, load_job
from hetrl.spec.yaml_text import folder_of, parse_yaml
from hetrl.tools.cli import run_command
from hetrl.tools.interrupts import terminated_as_interrupted, undisturbed
from hetrl.tools.plan_files import certificate_beside, write_results
from hetrl.tools.plan_notes import offload_notes
from hetrl.tools.plan_text import plan_text

if TYPE_CHECKING:
    from hetrl.search.exact.result import ExactResult

MOST_LANES = 1024
"""Processes that a search may be asked to start."""
LARGE_FLEET = 64
"""Devices from which on two processes are faster than one (benchmarks.search)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``hetrl plan``."""
    parser.add_argument("--config", required=True, type=Path, help="job file (YAML); - reads it from stdin")
    parser.add_argument("--out", type=Path, help="where to write plan.json; without it nothing is written")
    parser.add_argument("--models", type=Path, help="cost model written by hetrl fit or refit (default: built-in)")
    parser.add_argument("--solver", choices=SOLVERS, help="overrides optimizer.solver")
    parser.add_argument("--objective", choices=OBJECTIVES, help="overrides optimizer.objective")
    parser.add_argument("--seed", type=int, help="overrides optimizer.seed")
    parser.add_argument("--budget", type=int, help="cost evaluations to spend; overrides optimizer.budget")
    parser.add_argument(
        "--max-search-seconds",
        "--time-limit",
        dest="max_search_seconds",
        type=float,
        help="overrides optimizer.max_search_seconds",
    )
    parser.add_argument("--mip", choices=MIP_SOLVERS, help="solver of the exact solver's integer program")
    parser.add_argument("--gap", type=float, help="relative gap that is good enough for the exact solver")
    parser.add_argument(
        "--certificate", type=Path, help="where the exact solver's certificate goes (default: beside --out)"
    )
    parser.add_argument(
        "--threads",
        type=_lanes,
        metavar="N",
        help="processes that search (0: one per core; default: 1, for large fleets up to 2); same plan",
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="search on a Ray cluster (no address: on this machine)",
    )
    parser.add_argument("--warm-start", type=Path, metavar="PLAN", help="plan.json to start from; never worse than it")
    parser.add_argument("--pin", action="append", default=[], metavar="TASK=NODE,...", help="only these nodes")
    parser.add_argument("--forbid", action="append", default=[], metavar="TASK=NODE,...", help="not these nodes")
    parser.add_argument(
        "--keep", action="append", default=[], metavar="TASK", help="keep the task's devices and stages of --warm-start"
    )
    parser.add_argument("--max-usd-per-step", type=float, help="highest price of a step")
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
    """Plan, write, report."""
    with terminated_as_interrupted():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    clock = Clock()
    job = load_job(args.config, overrides=_overrides(args))
    model = read_cost_model(args.models)
    job = model.with_links(job)
    costs = UnitCosts(model, job.precision)
    warm_start = read_warm_start(args.warm_start, job)
    check_writable(args.out, args.certificate)
    if args.certificate is not None:
        refuse_certificate(job)
    clock.lap("read")
    threads = _usual_lanes(job) if args.threads is None and args.ray is None else args.threads
    result = solve(
        job,
        costs,
        progress=None if args.quiet or args.json else partial(_progress, job.optimizer.minimises_dollars),
        bound_progress=None if args.quiet or args.json else _bound_progress,
        warm_start=warm_start,
        threads=threads,
        ray_address=args.ray,
    )
    with undisturbed():
        clock.lap("search")
        certificate = certificate_path(args, result)
        document = document_of(
            job,
            result,
            costs,
            config_folder=_relative_folder(args.config, args.out or certificate),
            certificate=certificate.name if certificate is not None else "",
        )
        if args.certificate is not None and certificate is None:
            print(f"note: {args.certificate} is not written: the proof was cut off", file=sys.stderr)
        written = write_results(  # before anything is printed: a closed terminal loses no result
            args.out,
            document,
            lambda: {**clock.lap("report").to_json(), "threads": threads, "work": dict(result.work)},
            job=job,
            certificate=result.proof.certificate if result.proof is not None else None,
            certificate_path=certificate,
        )
    if args.json:
        print(json.dumps(document.to_json(), indent=1))
        return EXIT_OK
    print(plan_text(job, result, document))
    print(f"\nwritten: {', '.join(map(str, written))}" if written else "\nnothing written: --out FILE keeps the plan")
    return EXIT_OK


def refuse_certificate(job: Job) -> None:
    """Refuse, before any search, to write a certificate that the job cannot have."""
    optimizer = job.optimizer
    if optimizer.solver != "ilp" or optimizer.minimises_dollars or optimizer.gap > 0:
        message = "no certificate: only a proven optimum of step_seconds (or tokens_per_second) has one"
        raise SpecError(Problem(path="--certificate", message=message, valid="solver: ilp, gap 0"))


def certificate_path(args: argparse.Namespace, result: SearchResult) -> Path | None:
    """Return where the certificate goes; None if there is none to write."""
    asked, out = args.certificate, args.out
    if result.proof is None or result.proof.certificate is None:
        return None
    if asked is None and out is not None and (out.is_file() or not out.exists()):
        return certificate_beside(out)
    return asked if asked is None else Path(asked)


class Clock:
    """Wall and CPU seconds of the stages of a command, for a file beside the plan: the plan holds no clock times."""

    def __init__(self) -> None:
        self.last = (time.perf_counter(), cpu_seconds())
        self.stages: dict[str, dict[str, float]] = {}

    def lap(self, stage: str) -> Clock:
        """End a stage."""
        now = (time.perf_counter(), cpu_seconds())
        self.stages[stage] = {"wall_seconds": now[0] - self.last[0], "cpu_seconds": now[1] - self.last[1]}
        self.last = now
        return self

    def to_json(self) -> dict[str, object]:
        """Return the stages and their sums."""
        sums = {key: sum(stage[key] for stage in self.stages.values()) for key in ("wall_seconds", "cpu_seconds")}
        return {**sums, "stages": self.stages}


def cpu_seconds() -> float:
    """CPU time of this process and of those it started that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def read_warm_start(path: Path | None, job: Job) -> Plan | None:
    """Return the plan of a file, checked against the job."""
    if path is None:
        return None
    plan = read_plan(path).plan
    problems = plan_problems(job, plan)
    if problems:
        raise SpecError(replace(problem, path=f"{path}: {problem.path}") for problem in problems)
    return plan


def read_cost_model(path: Path | None) -> CostModel:
    """Return the cost model of a file, or the built-in one."""
    return CostModel.load(path) if path is not None else CostModel.builtin()


def document_of(
    job: Job, result: SearchResult, costs: UnitCosts, *, config_folder: str, certificate: str = ""
) -> PlanDocument:
    """Plan.json of a search result."""
    estimate, dollars = result.estimate, job.optimizer.minimises_dollars
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
            "budget": job.optimizer.budget or default_budget(job.topology.num_devices),
            "objective": job.optimizer.objective,
            "lower_bound_usd_per_step" if dollars else "lower_bound_seconds": result.lower_bound,
            "gap": result.gap if result.lower_bound > 0 else None,
            "stopped_by_time": result.stopped_by_time,
            "interrupted": result.interrupted,
            "cost_model": costs.model.source,
            "counts": dict(result.counts),
            **(_proof_entries(job, result.proof, certificate) if result.proof is not None else {}),
            **({"price_curve": [asdict(each) for each in result.curve]} if result.curve else {}),
        },
        assumed=job.assumed,
        warnings=job.warnings,
        notes=offload_notes(job, result.plan),
        unsupported=tuple(str(problem) for problem in unsupported(job, result.plan)),
    )


def _proof_entries(job: Job, proof: ExactResult, certificate: str) -> dict[str, object]:
    """Return what plan.json says of a proof, in the objective's unit.

    ``objective_value`` is the proven optimum of the declared space, where there is one; ``plan_value`` is what the plan
    that is returned takes, which level 5 may have led out of the space.
    """
    return {
        "status": proof.status,
        "objective_value": proof.objective,
        "plan_value": objective_of(job, proof.estimate) if proof.estimate is not None else None,
        "lower_bound": proof.lower_bound,
        "mip": job.optimizer.mip,
        "declared_space": proof.space.text,
        "certificate": certificate or None,
    }


def _lanes(text: str) -> int:
    if not text.isdecimal() or int(text) > MOST_LANES:
        raise argparse.ArgumentTypeError(f"a number of processes up to {MOST_LANES}, or 0 for one per core: {text!r}")
    return int(text) or _num_cores()


def _usual_lanes(job: Job) -> int | None:
    """Two processes pay where a search takes seconds; the exact solver chooses itself."""
    if job.optimizer.solver == "ilp":
        return None
    return min(2, _num_cores()) if job.topology.num_devices >= LARGE_FLEET else 1


def _num_cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1


def _overrides(args: argparse.Namespace) -> dict[str, object]:
    overrides: dict[str, object] = {}
    for text in args.set:
        path, equals, value = text.partition("=")
        if not equals or not path:
            raise SpecError(Problem(path="--set", message="not PATH=VALUE", found=text, valid="optimizer.seed=1"))
        overrides[path] = parse_yaml(value, "--set") if value else None
    for flag in ("pin", "forbid"):
        for text in getattr(args, flag):
            task, equals, nodes = text.partition("=")
            if not (task and nodes):
                raise SpecError(Problem(path=f"--{flag}", message="not TASK=NODE,...", found=text))
            overrides[f"optimizer.constraints.{flag}.{task}"] = nodes.split(",")
    if args.keep:
        overrides["optimizer.constraints.keep_layout"] = [name for text in args.keep for name in text.split(",")]
    given = {
        "solver": args.solver,
        "objective": args.objective,
        "constraints.max_usd_per_step": args.max_usd_per_step,
        "seed": args.seed,
        "budget": args.budget,
        "max_search_seconds": args.max_search_seconds,
        "mip": args.mip,
        "gap": args.gap,
    }
    overrides.update({f"optimizer.{key}": value for key, value in given.items() if value is not None})
    return overrides


def _relative_folder(config: Path, out: Path | None) -> str:
    """Return the configuration's folder as seen from plan.json, so that equal jobs give equal plans anywhere."""
    base = out.parent if out is not None else Path()
    return os.path.relpath(folder_of(config.resolve()).resolve(), base.resolve())


def _progress(dollars: bool, stage: str, cost: float) -> None:
    if sys.stderr.isatty():
        shown = (
            (f"${cost:.3g} per step" if dollars else f"{cost:.3g} s per step") if cost < 1e11 else "nothing fits yet"
        )
        print(
            f"\r\033[Ksearching: {stage}, best so far {shown}",
            end="" if stage != "polish" else "\n",
            file=sys.stderr,
            flush=True,
        )


def _bound_progress(lower: float, best: float, gap: float) -> None:
    if sys.stderr.isatty():
        shown = f"best {best:.5g}, bound {lower:.5g}, gap {gap:.2%}" if math.isfinite(best) else f"bound {lower:.5g}"
        print(f"\r\033[Kproving: {shown} ", end="", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``hetrl plan`` and ``python -m hetrl.tools.plan``."""
    return run_command(add_arguments, run, argv, prog="hetrl plan", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
