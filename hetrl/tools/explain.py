"""Say why a plan is as it is: critical path, what binds each task, the runner-up, what one more device would bring."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hetrl.cost.estimate import Estimate
from hetrl.cost.evaluate import evaluate
from hetrl.cost.unit import UnitCosts
from hetrl.errors import EXIT_INFEASIBLE, EXIT_OK, Problem, SpecError
from hetrl.plan.document import read_plan
from hetrl.plan.plan import Plan
from hetrl.search.chains import objective_of
from hetrl.search.explain import GroupBinding, bindings, group_bindings, one_more_device, other_grouping, why_slower
from hetrl.search.result import groups_of
from hetrl.spec.job import Job
from hetrl.tools.bound_text import bound_line
from hetrl.tools.cli import run_command
from hetrl.tools.job_or_plan import SAME, note_another_prediction, read_job_or_plan
from hetrl.tools.plan import read_cost_model
from hetrl.tools.plan_notes import offload_notes
from hetrl.tools.plan_text import step_word, unused_lines
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
    another = note_another_prediction(args.plan, model, estimate)
    tasks = bindings(job, plan, estimate)
    groups = group_bindings(plan, estimate, tasks)
    print("\n".join(_path_lines(job, groups, estimate)))
    print("what binds each group (share of its time), and its fullest device:")
    for number, group in enumerate(groups):
        path = f"{', '.join(group.critical)} on the critical path" if group.critical else "not on the critical path"
        print(f"  group {number} ({', '.join(group.tasks)}): {group.limit}; busy {group.busy_share:.0%}; {path}")
        print(f"    {_shares(group.shares)}; memory {group.memory_share:.0%}")
    print("what binds each task:")
    for each in tasks:
        print(
            f"  {each.task:<18} {each.limit}: {_shares(each.shares)}; memory {each.memory_share:.0%}, "
            f"most of it {each.memory_term}"
        )
    for line in (*unused_lines(job, plan), *(f"memory: {note}" for note in offload_notes(job, plan))):
        print(line)
    proof = [] if another or not args.plan.is_file() else proof_lines(job, read_plan(args.plan).search, estimate)
    for line in proof:
        print(line)
    if not args.quick:
        _searches(job, plan, costs, estimate, proven=bool(proof))
    return EXIT_OK


def _path_lines(job: Job, groups: Sequence[GroupBinding], estimate: Estimate) -> list[str]:
    """Return what decides on the time: of a step its critical path, of a period the busiest group or that path."""
    schedule = estimate.schedule
    if job.staleness:
        busiest = max(range(len(groups)), key=lambda number: groups[number].busy_share)
        because = f"group {busiest} ({', '.join(groups[busiest].tasks)}) is busy all the time"
        if groups[busiest].busy_share < 1 - 1e-6:
            chain = format_seconds(estimate.step_seconds * (1 + job.staleness))
            because = f"the longest chain of tasks that need each other's output, {chain}, over 1 + staleness"
        lines = [f"{_figures(job, estimate)}: {because}"]
        lines.append(f"critical path of one step, {format_seconds(schedule.seconds)}, with which others overlap:")
    else:
        lines = [f"{_figures(job, estimate)}; critical path:"]
    for name in schedule.critical_path:
        seconds = schedule.end[name] - schedule.start[name]
        lines.append(f"  {name:<24} {format_seconds(seconds):>9}  {seconds / schedule.seconds:6.1%}")
    return lines


def _figures(job: Job, estimate: Estimate) -> str:
    """Step or period, and the price where that is the objective."""
    text = f"{step_word(job)} {format_seconds(estimate.step_seconds)}"
    if job.optimizer.minimises_dollars and estimate.usd_per_step is not None:
        text += f", ${estimate.usd_per_step:.4g}"
    return text


def _shares(shares: Mapping[str, float]) -> str:
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in ranked if share >= 0.01)


def _change(job: Job, estimate: Estimate, base: Estimate) -> str:
    return f"{_figures(job, estimate)} ({objective_of(job, estimate) / objective_of(job, base) - 1:+.1%})"


def proof_lines(job: Job, search: Mapping[str, Any], estimate: Estimate) -> list[str]:
    """Return what plan.json says of its proof; nothing if the hybrid solver made the plan.

    Parameters
    ----------
    search
        ``search`` of plan.json.
    estimate
        Of the plan, with the cost model of the proof.
    """
    bound, optimum = search.get("lower_bound"), search.get("objective_value")
    if not isinstance(bound, int | float) or not isinstance(optimum, int | float):
        return []
    unit = "$ per step" if job.optimizer.minimises_dollars else "s"
    value = objective_of(job, estimate)
    if search.get("status") != "optimal":
        lines = ["not proven optimal: the exact solver was stopped, or could prove no more"]
    elif optimum - bound <= SAME * optimum:
        lines = [f"proven: the optimum of the declared space is {optimum:.5g} {unit}"]
    else:
        lines = ["proven as far as the gap that was asked for"]
    gap = f"; gap {max(0.0, value / bound - 1):.2%}" if bound > 0 else ""
    lines.append(f"the plan takes {value:.5g} {unit}, no plan of the declared space less than {bound:.5g} {unit}{gap}")
    return [*lines, f"declared space: {search.get('declared_space', 'not stated')}"]


def _searches(job: Job, plan: Plan, costs: UnitCosts, estimate: Estimate, *, proven: bool) -> None:
    found = other_grouping(job, costs, plan)
    if found is not None:
        if not proven and found.lower_bound > 0:
            print(bound_line(job, found.lower_bound, objective_of(job, estimate) / found.lower_bound - 1))
        pairs = [pair for pair in ((found.plan, found.estimate), found.runner_up) if pair is not None]
        other = next((pair for pair in pairs if groups_of(pair[0]) != groups_of(plan)), None)
        if other is not None:
            _runner_up(job, *other, estimate)
    print("one more device of a type (found with a small budget, so a lower limit of the gain):")
    for kind, larger in one_more_device(job, costs, plan):
        print(f"  {kind:<14} {_change(job, larger, estimate)}")


def _runner_up(job: Job, rival: Plan, figures: Estimate, estimate: Estimate) -> None:
    print(f"runner-up with other groups: {_change(job, figures, estimate)}")
    print("  " + " | ".join(", ".join(group.tasks) for group in rival.groups))
    if job.staleness:
        busy = group_bindings(rival, figures, bindings(job, rival, figures))
        loads = (format_seconds(each.busy_share * figures.step_seconds) for each in busy)
        print(f"  its groups are busy for {', '.join(loads)} of every step")
        return
    print(f"  its critical path: {' > '.join(figures.schedule.critical_path)}")
    for name, mine, theirs in why_slower(estimate, figures)[:3]:
        where = f"{format_seconds(mine)} here" if mine > 0 else "off the critical path here"
        print(f"  it loses by {name}: {format_seconds(theirs)}, {where}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hetrl explain``."""
    return run_command(add_arguments, run, argv, prog="hetrl explain", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
