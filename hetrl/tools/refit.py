"""Fold measurements of a run into a cost model: phase calibrations are fitted again, the operators stay.

Fresh measurements decide: a measurement's weight halves with every week of age, and what the model knew before only
settles what the measurements cannot tell apart. A device whose time has moved by more than 10 % and by more than
single measurements scatter is reported as drift: against the model, or within the measurements from some moment on;
then those before it hardly count.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hetrl.cost.model import CostModel
from hetrl.errors import EXIT_OK
from hetrl.files import check_writable
from hetrl.plan.plan import Plan
from hetrl.tools.cli import run_command
from hetrl.tools.console import PlainConsole
from hetrl.tools.fit_profile import print_changes, read_measurements
from hetrl.tools.job_or_plan import read_job_or_plan

if TYPE_CHECKING:
    from hetrl_profiler.refit import Change


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

    check_writable(args.out)
    check_writable(args.out.with_suffix(".operators"))
    job, plan = read_job_or_plan(args.config)
    model = CostModel.load(args.models) if args.models is not None else CostModel.builtin()
    measurements = read_measurements(args.measurements)
    fitted = refit_run(job, measurements, model, micro_batch_sizes=micro_batch_sizes(plan), source=str(args.out))
    fitted.model.save(args.out)
    console = PlainConsole()
    print_changes(console, fitted, before="predicted")
    for line in drift_lines(fitted.changes):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"written: {args.out}", highlight=False, soft_wrap=True)
    return EXIT_OK


def drift_lines(changes: Sequence[Change]) -> list[str]:
    """Say per device what takes longer or shorter than before, and since when."""
    lines = []
    for device in dict.fromkeys(each.device for each in changes):
        own = [each for each in changes if each.device == device and each.is_drift]
        if own:
            what = ", ".join(
                f"{each.kind} x{each.shift.ratio if each.shift else each.ratio_before:.2f}" for each in own
            )
            shifts = [each.shift for each in own if each.shift is not None]
            since = f" since {min(shift.since for shift in shifts)[:16].replace('T', ' ')} UTC" if shifts else ""
            lines.append(f"drift: {device} takes another time{since}: {what}")
    return lines or ["drift: none"]


def micro_batch_sizes(plan: Plan | None) -> Mapping[str, int]:
    """Task -> micro-batch size (for generation the engine's limit) of a plan."""
    return {task.task: task.micro_batch_size for task in plan.tasks} if plan is not None else {}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run_command(add_arguments, run, argv, prog="hetrl refit", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
