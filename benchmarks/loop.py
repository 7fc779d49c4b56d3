"""The whole loop on this machine: profile, fit, plan, launch, measure, refit, re-plan. `make demo` runs it.

Two CPU devices, one core each; the second is slowed from outside its workers, and neither planner nor profiler is
told by how much. GRPO trains a small Llama over three seeds, planned and even shares in turn within the same run, with
a control at learning rate 0. Run 1 is refitted and judged on run 2, which has other shares and lengths.

python -m benchmarks.loop [--json FILE] [--out DIR] [--quick]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.loop_predict import predicted_phases, predicted_step_seconds, replanned
from benchmarks.loop_report import LoopResult, StepScore, print_report, shares_text
from benchmarks.loop_stages import fit, launch, plan, prepare, profile, refit
from hetrl.files import write_json_atomically
from hetrl.measure import MeasurementStore, load_measurements
from hetrl.plan.plan import Plan
from hetrl.runtime.session import Session
from hetrl.runtime.step import StepRecord
from hetrl_profiler.described import slowdowns

SEEDS = (1, 2, 3)
NUM_STEPS = 16
NUM_CONTROL_STEPS = 8
LEARNING_RATE = 2e-3
RUN_2_REPEATS = 2
NUM_REPLANNED_STEPS = 6
"""Steps at the re-planned shares, and as many at even shares, in turn."""


def train(session: Session, seed: int, learning_rate: float, num_steps: int) -> list[StepRecord]:
    """One training run from the initial weights, planned and even shares in turn."""
    session.reset(seed=seed, learning_rate=learning_rate)
    records = []
    for step in range(num_steps):
        records.append(session.step(shares=None if step % 2 == 0 else session.even_shares))
        last = records[-1]
        kind = "planned" if step % 2 == 0 else "even"
        print(
            f"  seed {seed} lr {learning_rate:g} step {step:2d} {kind:7s} {last.seconds:5.2f} s  "
            f"reward {last.reward_mean:.3f}  KL {last.kl:.3f}  {last.tokens_per_second:5.0f} tokens/s",
            flush=True,
        )
    return records


def other_settings(session: Session, max_response_tokens: int) -> list[tuple[dict[str, tuple[int, ...]], int]]:
    """Shares and response limits of run 2, none of which run 1 had."""
    settings = []
    for shift, length in ((2, 3 / 4), (-2, 1 / 2), (4, 1 / 2), (-3, 3 / 4)):
        shares = {}
        for task, (first, second) in session.planned_shares.items():
            moved = max(-first + 1, min(second - 1, shift))
            shares[task] = (first + moved, second - moved)
        settings.append((shares, max(1, round(max_response_tokens * length))))
    return settings


def shares_of(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Prompts per replica of every task."""
    return {task.task: tuple(replica.num_prompts for replica in task.replicas) for task in plan.tasks}


def same_layout(old: Plan, new: Plan) -> bool:
    """Whether two plans differ in shares only, so that the running workers can try the new one."""
    return [[replica.stages for replica in task.replicas] for task in old.tasks] == [
        [replica.stages for replica in task.replicas] for task in new.tasks
    ]


def in_turn(session: Session, shares: dict[str, tuple[int, ...]]) -> tuple[list[float], list[float]]:
    """Seconds of steps at some shares and at even shares, in turn."""
    tried, even = [], []
    for _ in range(NUM_REPLANNED_STEPS):
        tried.append(session.step(shares=shares).seconds)
        even.append(session.step(shares=session.even_shares).seconds)
        print(f"  re-planned {tried[-1]:.2f} s, even {even[-1]:.2f} s", flush=True)
    return tried, even


def run_loop(out: Path, *, quick: bool) -> LoopResult:
    """Carry out every stage and return what was found."""
    fleet = prepare(out)
    profile(fleet)
    fitted = fit(fleet)
    job, document = plan(fleet, fitted, "plan.json")
    seeds, num_steps = (SEEDS[:1], 6) if quick else (SEEDS, NUM_STEPS)
    with launch(fleet, job, document, MeasurementStore(fleet.run_1)) as session:
        print("\nrun 1: three seeds, planned and even shares in turn", flush=True)
        trained = [train(session, seed, LEARNING_RATE, num_steps) for seed in seeds]
        print("\ncontrol: learning rate 0", flush=True)
        control = [train(session, seed, 0.0, NUM_CONTROL_STEPS if not quick else 4) for seed in seeds]
        planned_shares, even_shares = session.planned_shares, session.even_shares

        refitted = refit(fleet, fitted)
        print("\nrun 2: other shares and lengths", flush=True)
        session.reset(seed=SEEDS[0], learning_rate=LEARNING_RATE)
        session.step()  # a reset empties caches
        scores = []
        for shares, length in other_settings(session, job.batch.max_response_tokens) * RUN_2_REPEATS:
            measured = session.step(shares=shares, max_response_tokens=length).seconds
            score = StepScore(
                shares=shares,
                max_response_tokens=length,
                measured_seconds=measured,
                before_seconds=predicted_step_seconds(job, document.plan, fitted, shares, length),
                after_seconds=predicted_step_seconds(job, document.plan, refitted, shares, length),
            )
            scores.append(score)
            print(f"  {score.line()}", flush=True)
        again = replanned(job, refitted)
        new_shares = shares_of(again.plan)
        print(f"\nre-planned with the refitted model: {shares_text(new_shares)}", flush=True)
        compared = in_turn(session, new_shares) if same_layout(document.plan, again.plan) else ([], [])
    return LoopResult(
        trained=trained,
        control=control,
        planned_shares=planned_shares,
        even_shares=even_shares,
        predicted_planned={
            "before": predicted_step_seconds(job, document.plan, fitted, planned_shares),
            "after": predicted_step_seconds(job, document.plan, refitted, planned_shares),
        },
        predicted_even={
            "before": predicted_step_seconds(job, document.plan, fitted, even_shares),
            "after": predicted_step_seconds(job, document.plan, refitted, even_shares),
        },
        run_2=scores,
        replanned_shares=new_shares,
        replanned_seconds=compared,
        replanned_step_seconds=again.estimate.step_seconds,
        slowdowns=slowdowns([each for file in fleet.profiles for each in load_measurements(file)]),
        phases=predicted_phases(trained, job, document.plan, fitted, refitted, planned_shares),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the loop; exit code 0 if it ended, whatever the figures say (the table says which hold)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--out", type=Path, default=Path("runs/loop"), help="folder for models, profiles and plans")
    parser.add_argument("--quick", action="store_true", help="one seed and few steps: tries the machinery only")
    args = parser.parse_args(argv)
    result = run_loop(args.out, quick=args.quick)
    figures = print_report(result)
    if args.json is not None:
        write_json_atomically(args.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
