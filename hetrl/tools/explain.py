"""Say why a plan is as it is: critical path, what binds each task, the runner-up, what one more device would bring."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hetrl.cost.evaluate import evaluate
from hetrl.cost.unit import UnitCosts
from hetrl.errors import EXIT_INFEASIBLE, EXIT_OK, Problem, SpecError
from hetrl.plan.plan import Plan
from hetrl.search.explain import bindings, one_more_device, other_grouping
from hetrl.search.hybrid import groups_of
from hetrl.spec.job import Job
from hetrl.tools.cli import run_command
from hetrl.tools.job_or_plan import read_job_or_plan
from hetrl.tools.plan import read_cost_model
from hetrl.units import format_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``hetrl explain``."""
    parser.add_argument("plan", type=Path, help="plan.json")
    parser.add_argument("--models", type=Path, help="cost model written by hetrl fit or refit (default: built-in)")
    parser.add_argument("--quick", action="store_true", help="no searches: leave out the runner-up and more devices")


def run(args: argparse.Namespace) -> int:
    """Read, evaluate, explain."""
    job, plan = read_job_or_plan(args.plan)
    if plan is None:
        raise SpecError(Problem(path=str(args.plan), message="not a plan.json", valid="the output of hetrl plan"))
    model = read_cost_model(args.models)
    job = model.with_links(job)
    costs = UnitCosts(model, job.precision)
    estimate = evaluate(job, plan, costs)
    if not estimate.feasible:
        print("the plan does not fit:")
        print("\n".join(f"  {problem}" for problem in estimate.problems[:20]))
        return EXIT_INFEASIBLE
    print(f"step {format_seconds(estimate.step_seconds)}; critical path:")
    for name in estimate.schedule.critical_path:
        start, end = estimate.schedule.start[name], estimate.schedule.end[name]
        print(f"  {name:<24} {format_seconds(end - start):>9}  {(end - start) / estimate.step_seconds:6.1%}")
    print("what binds each task (share of its time), and its fullest device:")
    for each in bindings(job, plan, estimate):
        ranked = sorted(each.shares.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{name} {share:.0%}" for name, share in ranked if share >= 0.01)
        print(
            f"  {each.task:<18} {each.limit}: {shares}; memory {each.memory_share:.0%}, most of it {each.memory_term}"
        )
    if not args.quick:
        _searches(job, plan, costs, estimate.step_seconds)
    return EXIT_OK


def _searches(job: Job, plan: Plan, costs: UnitCosts, step_seconds: float) -> None:
    found = other_grouping(job, costs, plan)
    if found is not None:
        gap = step_seconds / found.lower_bound - 1
        print(f"lower bound {format_seconds(found.lower_bound)}: no plan is faster; gap {gap:.1%}")
        pairs = [pair for pair in ((found.plan, found.estimate), found.runner_up) if pair is not None]
        other = next((pair for pair in pairs if groups_of(pair[0]) != groups_of(plan)), None)
        if other is not None:
            rival, figures = other
            change = figures.step_seconds / step_seconds - 1
            print(f"runner-up with other groups: {format_seconds(figures.step_seconds)} ({change:+.1%})")
            print("  " + " | ".join(", ".join(group.tasks) for group in rival.groups))
            print(f"  its critical path: {' > '.join(figures.schedule.critical_path)}")
    print("one more device of a type (found with a small budget, so a lower limit of the gain):")
    for kind, seconds in one_more_device(job, costs):
        if seconds is None:
            print(f"  {kind:<14} no plan found")
        else:
            better = min(seconds, step_seconds)
            print(f"  {kind:<14} {format_seconds(better)} ({better / step_seconds - 1:+.1%})")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hetrl explain``."""
    return run_command(add_arguments, run, argv, prog="hetrl explain", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
