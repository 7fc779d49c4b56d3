"""Fold measurements of a run into a cost model: phase calibrations are fitted again, the operators stay.

Fresh measurements decide: a measurement's weight halves with every week of age, and what the model knew before only
settles what the measurements cannot tell apart. A device whose time has moved by more than 10 % and by more than
single measurements scatter is reported as drift.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from hetrl.cost.model import CostModel
from hetrl.errors import EXIT_OK
from hetrl.plan.plan import Plan
from hetrl.tools.cli import run_command
from hetrl.tools.fit_profile import print_changes, read_measurements
from hetrl.tools.job_or_plan import read_job_or_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--models", type=Path, metavar="FILE", help="cost model so far (default: the built-in one)")
    parser.add_argument(
        "--measurements",
        type=Path,
        required=True,
        nargs="+",
        action="extend",
        metavar="FILE",
        help="of runs, JSON lines",
    )
    parser.add_argument(
        "--config", "--plan", dest="config", type=Path, required=True, metavar="FILE",
        help="plan.json that was run, or its job file",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to write the new model")


def run(args: argparse.Namespace) -> int:
    """Refit, write, report."""
    from hetrl_profiler.model_fit import refit_run

    job, plan = read_job_or_plan(args.config)
    model = CostModel.load(args.models) if args.models is not None else CostModel.builtin()
    measurements = read_measurements(args.measurements)
    fitted = refit_run(job, measurements, model, micro_batch_sizes=micro_batch_sizes(plan), source=str(args.out))
    fitted.model.save(args.out)
    console = Console()
    print_changes(console, fitted, before="predicted")
    drifted = [f"{each.device} {each.kind} x{each.ratio_before:.2f}" for each in fitted.changes if each.is_drift]
    console.print(f"drift: {', '.join(drifted) if drifted else 'none'}", highlight=False)
    console.print(f"written: {args.out}", highlight=False)
    return EXIT_OK


def micro_batch_sizes(plan: Plan | None) -> Mapping[str, int]:
    """Task -> micro-batch size (for generation the engine's limit) of a plan."""
    return {task.task: task.micro_batch_size for task in plan.tasks} if plan is not None else {}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run_command(add_arguments, run, argv, prog="hetrl refit", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
