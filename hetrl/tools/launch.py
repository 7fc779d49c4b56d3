"""Run a plan: vLLM engines for rollouts, torch workers for scoring and training, placed by Ray.

Joins the Ray at --address or RAY_ADDRESS, else starts one on this machine, on the loopback interface only. The
`run:` section (model, prompts, reward function, learning rate, ...) comes from --config, else from the configuration
that plan.json carries. A reward function is code: one that only plan.json names runs only with --trust-plan.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hetrl.errors import EXIT_OK, Problem, SpecError
from hetrl.measure import MeasurementStore
from hetrl.plan.document import PlanDocument, read_plan
from hetrl.runtime.limits import resolve_run
from hetrl.runtime.recording import Prediction
from hetrl.runtime.run import MEASUREMENTS_FILE, check_out, run_steps
from hetrl.runtime.session import Session
from hetrl.spec.job import Job, RunSettings
from hetrl.spec.load import load_job
from hetrl.spec.yaml_text import folder_of
from hetrl.tools.cli import run_command
from hetrl.tools.console import PlainConsole
from hetrl.tools.interrupts import terminated_as_interrupted
from hetrl.tools.job_or_plan import job_of
from hetrl.units import format_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``hetrl-launch``."""
    parser.add_argument("--plan", type=Path, required=True, help="plan.json written by hetrl plan")
    parser.add_argument("--config", type=Path, help="job file whose run: section to use")
    parser.add_argument("--trust-plan", action="store_true", help="run the reward function that plan.json names")
    parser.add_argument("--model", help="folder of the actor; overrides run.actor_path")
    parser.add_argument("--prompts", help="JSON-lines file; overrides run.prompts")
    parser.add_argument("--reward", help="module:function or file.py:function; overrides run.reward")
    parser.add_argument("--steps", type=int, help="overrides run.num_steps")
    parser.add_argument("--seed", type=int, help="overrides run.seed")
    parser.add_argument("--address", help="of a running Ray (default: RAY_ADDRESS; without one, start Ray here)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/latest"), help="folder for results (default: %(default)s)"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the latest checkpoint in --out")
    parser.add_argument(
        "--throttle",
        action="append",
        default=[],
        metavar="TYPE=DUTY",
        help="slow devices of a type from outside, e.g. cpu-slow=0.5, to try unequal devices on one machine",
    )


def run(args: argparse.Namespace) -> int:
    """Check, start, run, and end cleanly whatever happens."""
    document = read_plan(args.plan)
    job = job_of(document, args.plan)
    settings = _settings(args, document, job)
    throttle = _throttle(args.throttle)
    prediction = prediction_of(document, job)
    resume_from = check_out(args.out, args.resume)
    console = PlainConsole()
    store = MeasurementStore(args.out / MEASUREMENTS_FILE, labels={"run": str(args.out), "plan": _digest(args.plan)})
    with terminated_as_interrupted():
        with console.status("starting Ray, engines and trainers"):
            session = Session.start(
                document.plan,
                job,
                settings,
                address=args.address or os.environ.get("RAY_ADDRESS"),
                store=store,
                prediction=prediction,
                throttle=throttle,
                logs=args.out / "logs",
                bucket_bytes=document.bucket_bytes,
            )
        with session:
            records = run_steps(
                session,
                num_steps=settings.num_steps,
                out=args.out,
                checkpoint_every=settings.checkpoint_every,
                resume_from=resume_from,
                console=console,
            )
    if records:
        seconds = [record.seconds for record in records]
        console.print(outcome_line(seconds, prediction.step_seconds), highlight=False)
    console.print(f"results in {args.out}", highlight=False)
    return EXIT_OK


def outcome_line(seconds: Sequence[float], predicted: float | None) -> str:
    """Compare the steps of a run with the plan's."""
    text = f"median of {len(seconds)} steps: {format_seconds(statistics.median(seconds))}"
    return text if predicted is None else f"{text}; the plan predicts {format_seconds(predicted)}"


def prediction_of(document: PlanDocument, job: Job) -> Prediction:
    """Return what plan.json says about a step, in the runtime's terms."""
    predicted: dict[str, Any] = dict(document.prediction)
    return Prediction(
        step_seconds=predicted["step_seconds"],
        replica_seconds={task: tuple(entry["replica_seconds"]) for task, entry in predicted["tasks"].items()},
        weight_sync_seconds=sum(each["seconds"] for each in predicted["transfers"] if each["kind"] == "weights"),
        peak_bytes={
            int(device): max(sum(terms.values()) for terms in entry["intervals"].values())
            for device, entry in predicted["memory"]["devices"].items()
        },
        shares={task.task: tuple(replica.num_prompts for replica in task.replicas) for task in document.plan.tasks},
        max_response_tokens=job.batch.max_response_tokens,
    )


def _settings(args: argparse.Namespace, document: PlanDocument, job: Job) -> RunSettings:
    """Return the run's settings: command line over --config over plan.json."""
    if args.config is not None:
        given, base = load_job(args.config).run, folder_of(args.config)
    else:
        given, base = job.run, args.plan.parent / document.config_folder
    settings = resolve_run(given or RunSettings(), job, base)
    overrides = {
        "actor_path": args.model,
        "prompts": args.prompts,
        "reward": args.reward,
        "num_steps": args.steps,
        "seed": args.seed,
    }
    settings = replace(settings, **{key: value for key, value in overrides.items() if value is not None})
    if settings.num_steps < 1:
        raise SpecError(Problem(path="--steps", message="must be at least 1", found=str(settings.num_steps)))
    if settings.reward and not (args.config or args.reward or args.trust_plan):
        raise SpecError(
            Problem(
                path="run.reward",
                message="named by plan.json only, and it is code that would run here",
                found=settings.reward,
                valid="--trust-plan to run it, or --config or --reward",
            )
        )
    return settings


def _digest(path: Path) -> str:
    """Return the start of a file's SHA-256: which plan a measurement belongs to."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _throttle(arguments: Sequence[str]) -> dict[str, float]:
    found = {}
    for argument in arguments:
        name, separator, duty = argument.partition("=")
        try:
            found[name] = float(duty)
        except ValueError:
            separator = ""
        if not separator or not name:
            raise SpecError(Problem(path="--throttle", message="not TYPE=DUTY", found=argument, valid="cpu-slow=0.5"))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``hetrl-launch`` and ``python -m hetrl.tools.launch``."""
    return run_command(add_arguments, run, argv, prog="hetrl-launch", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
