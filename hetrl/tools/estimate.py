"""Cost a plan with the planner's own evaluator: a plan.json, or a short YAML of groups and strategies.

The YAML names groups (tasks, and how many devices of which node) and, where wanted, strategies; whatever it leaves
out is chosen by the search. Exit code 3 if the plan does not fit, with every violated limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hetrl.cost.estimate import Estimate
from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel
from hetrl.cost.replays import Spread, replayed_steps
from hetrl.cost.unit import UnitCosts
from hetrl.errors import EXIT_INFEASIBLE, EXIT_OK, Problem, SpecError
from hetrl.plan.document import read_plan
from hetrl.plan.plan import Plan
from hetrl.plan.rules import plan_problems
from hetrl.search.context import SearchContext
from hetrl.search.written_plan import missing_tasks, written_plan
from hetrl.spec.job import Job
from hetrl.spec.load import load_job
from hetrl.spec.yaml_text import parse_yaml, read_text
from hetrl.tools.cli import run_command
from hetrl.tools.job_or_plan import is_plan, note_another_prediction, read_job_or_plan
from hetrl.tools.plan import read_cost_model
from hetrl.tools.plan_text import figures_text, layout_text, unused_lines
from hetrl.units import format_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``hetrl estimate``."""
    parser.add_argument("plan", type=Path, help="plan.json, or a YAML file with groups and strategies")
    parser.add_argument("--config", type=Path, help="job file; needed for a YAML plan, replaces a plan.json's own")
    parser.add_argument("--models", type=Path, help="cost model written by hetrl fit or refit (default: built-in)")
    parser.add_argument(
        "--scenarios",
        type=int,
        default=0,
        metavar="N",
        help="replay N steps with drawn lengths: p10, p50, p90 (extra: pip install 'hetrl[sweeps]')",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    parser.add_argument(
        "--device-spread", type=float, default=0.0, metavar="S", help="log-normal slow-downs of devices, e.g. 0.05"
    )
    parser.add_argument("--link-spread", type=float, default=0.0, metavar="S", help="the same for transfers")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Read, evaluate, print."""
    _check(args)
    model = read_cost_model(args.models)
    job, plan, costs = _read(args, model)
    problems = plan_problems(job, plan)
    if problems:
        raise SpecError(problems)
    estimate = evaluate(job, plan, costs)
    if args.config is None and estimate.feasible:
        note_another_prediction(args.plan, model, estimate)
    quantiles = _quantiles(args, job, plan, costs) if args.scenarios > 0 and estimate.feasible else {}
    if args.json and estimate.feasible:
        prediction = estimate.to_json([node.id for node in job.topology.nodes])
        print(json.dumps(prediction | ({"scenarios": quantiles} if quantiles else {}), indent=1))
    elif args.json:
        print(json.dumps({"feasible": False, "problems": [str(problem) for problem in estimate.problems]}, indent=1))
    else:
        print("\n".join(estimate_lines(job, plan, estimate)))
        if quantiles:
            print(scenarios_line(args, quantiles))
    return EXIT_OK if estimate.feasible else EXIT_INFEASIBLE


def scenarios_line(args: argparse.Namespace, quantiles: Mapping[str, float]) -> str:
    """Say what was drawn, and how long the step takes then."""
    drawn = ["response lengths"]
    drawn += [f"slow-downs of devices (spread {args.device_spread:g})"] if args.device_spread > 0 else []
    drawn += [f"slow-downs of links (spread {args.link_spread:g})"] if args.link_spread > 0 else []
    p10, p50, p90 = (format_seconds(quantiles[f"{name}_seconds"]) for name in ("p10", "p50", "p90"))
    return f"{args.scenarios:,} scenarios with drawn {', '.join(drawn)}: p10 {p10}, median {p50}, p90 {p90}"


def _quantiles(args: argparse.Namespace, job: Job, plan: Plan, costs: UnitCosts) -> dict[str, float]:
    """Replay the step in many scenarios."""
    spread = Spread(devices=args.device_spread, links=args.link_spread)
    steps = replayed_steps(job, plan, costs, num_scenarios=args.scenarios, seed=args.seed, spread=spread)
    names = ("p10_seconds", "p50_seconds", "p90_seconds")
    figures = dict(zip(names, np.quantile(steps, (0.1, 0.5, 0.9)).tolist(), strict=True))
    return {"number": args.scenarios, "seed": args.seed, **figures}


def _check(args: argparse.Namespace) -> None:
    limits = {"scenarios": 1_000_000, "seed": 2**32 - 1, "device_spread": 2.0, "link_spread": 2.0}
    problems = [
        Problem(path=f"--{name.replace('_', '-')}", message="out of range", found=f"{given:g}", valid=f"0 to {most:g}")
        for name, most in limits.items()
        for given in [getattr(args, name)]
        if not 0 <= given <= most
    ]
    if problems:
        raise SpecError(problems)


def _read(args: argparse.Namespace, model: CostModel) -> tuple[Job, Plan, UnitCosts]:
    if args.config is None:
        if not is_plan(args.plan):
            raise SpecError(Problem(path="--config", message="a YAML plan needs the job file it is for"))
        job, found = read_job_or_plan(args.plan)
        assert found is not None
        return model.with_links(job), found, UnitCosts(model, job.precision)
    job = model.with_links(load_job(args.config))
    if args.plan.suffix == ".json":
        return job, read_plan(args.plan).plan, UnitCosts(model, job.precision)
    costs = UnitCosts(model, job.precision)
    context = SearchContext(job, costs)
    plan = written_plan(context, parse_yaml(read_text(args.plan, "plan"), str(args.plan)))
    forgotten = missing_tasks(context, plan)
    if forgotten:
        raise SpecError(forgotten)
    return job, plan, costs


def estimate_lines(job: Job, plan: Plan, estimate: Estimate) -> list[str]:
    """Return the estimate for the terminal."""
    lines = []
    if estimate.feasible:
        lines.append(
            f"{figures_text(job, plan, estimate)}, critical path: {' > '.join(estimate.schedule.critical_path)}"
        )
    else:
        lines.append(f"does not fit: {len(estimate.problems)} limits violated")
        lines.extend(f"  {problem}" for problem in estimate.problems[:20])
    for number, group in enumerate(plan.groups):
        lines.append(f"group {number}: {len(group.devices)} devices")
        for name in group.tasks:
            task = estimate.tasks[name]
            layout = layout_text(job, plan.task(name)).replace("\n", "; ")
            lines.append(f"  {name:<18} {format_seconds(task.seconds):>9}  {layout}")
    lines += unused_lines(job, plan)
    lines.extend(
        f"{each.kind} {each.source} > {each.target}: {format_seconds(each.seconds)}"
        for each in estimate.transfers
        if each.seconds > 0.01 * estimate.step_seconds
    )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hetrl estimate``."""
    return run_command(add_arguments, run, argv, prog="hetrl estimate", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
