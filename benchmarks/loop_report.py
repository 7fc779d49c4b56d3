"""The loop's figures: what was found, and the table that says it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.loop_stages import DUTY
from hetrl.runtime.step import StepRecord
from hetrl_profiler.described import ALONE

REWARD_RANGE = 1.0
NUM_EDGE_STEPS = 3
"""Steps averaged at either end of a training run."""


def shares_text(shares: Mapping[str, Sequence[int]]) -> str:
    """Prompts of a step on the fast and on the slow device: ``actor_generate 17+7, actor_train 15+9``."""
    return ", ".join(f"{task} {'+'.join(map(str, each))}" for task, each in shares.items())


@dataclass(frozen=True, kw_only=True)
class StepScore:
    """One step of run 2 with its predictions before and after the refit."""

    shares: Mapping[str, tuple[int, ...]]
    max_response_tokens: int
    measured_seconds: float
    before_seconds: float
    after_seconds: float

    def error(self, predicted: float) -> float:
        """Absolute relative error of a prediction."""
        return abs(predicted / self.measured_seconds - 1)

    def line(self) -> str:
        """One line for the terminal."""
        return (
            f"{shares_text(self.shares)}, at most {self.max_response_tokens} tokens: {self.measured_seconds:.2f} s, "
            f"predicted {self.before_seconds:.2f} s before and {self.after_seconds:.2f} s after the refit"
        )


@dataclass(frozen=True, kw_only=True)
class LoopResult:
    """Everything the loop measured and predicted.

    ``slowdowns`` are the seconds that a CPU second took on each device while it was profiled.
    """

    trained: Sequence[Sequence[StepRecord]]
    control: Sequence[Sequence[StepRecord]]
    planned_shares: Mapping[str, tuple[int, ...]]
    even_shares: Mapping[str, tuple[int, ...]]
    predicted_planned: Mapping[str, float]
    predicted_even: Mapping[str, float]
    run_2: Sequence[StepScore]
    replanned_shares: Mapping[str, tuple[int, ...]]
    replanned_seconds: tuple[Sequence[float], Sequence[float]]
    replanned_step_seconds: float
    slowdowns: Mapping[str, float]
    phases: Mapping[str, tuple[float, float, float]]


def gains(runs: Sequence[Sequence[StepRecord]]) -> list[float]:
    """Per run: mean reward of the last steps minus that of the first."""
    return [
        statistics.mean(record.reward_mean for record in run[-NUM_EDGE_STEPS:])
        - statistics.mean(record.reward_mean for record in run[:NUM_EDGE_STEPS])
        for run in runs
    ]


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean; 0 for a single value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def step_seconds(result: LoopResult, shares: Mapping[str, tuple[int, ...]]) -> list[float]:
    """Step times of run 1 at some shares, the first two steps after every reset left out."""
    runs = [*result.trained, *result.control]
    return [record.seconds for run in runs for record in run[2:] if dict(record.shares) == dict(shares)]


def replanned_speedup(result: LoopResult) -> float | None:
    """Even over re-planned step time (medians); None if the re-plan needs other workers."""
    tried, even = result.replanned_seconds
    return statistics.median(even) / statistics.median(tried) if tried else None


def figures_of(result: LoopResult) -> dict[str, Any]:
    """Every figure of the report by name."""
    planned, even = step_seconds(result, result.planned_shares), step_seconds(result, result.even_shares)
    speedup = statistics.median(even) / statistics.median(planned)
    predicted = {when: result.predicted_even[when] / result.predicted_planned[when] for when in ("before", "after")}
    trained_gains, control_gains = gains(result.trained), gains(result.control)
    updated = [record for run in result.trained for record in run]
    moved = [record for record in updated if record.max_reference_difference > 0.05]
    return {
        "reward_first": [statistics.mean(r.reward_mean for r in run[:NUM_EDGE_STEPS]) for run in result.trained],
        "reward_last": [statistics.mean(r.reward_mean for r in run[-NUM_EDGE_STEPS:]) for run in result.trained],
        "reward_gain": statistics.mean(trained_gains),
        "reward_gain_standard_error": standard_error(trained_gains),
        "reward_gain_fraction_of_range": statistics.mean(trained_gains) / REWARD_RANGE,
        "control_gain": statistics.mean(control_gains),
        "control_gain_standard_error": standard_error(control_gains),
        "planned_shares": {task: list(shares) for task, shares in result.planned_shares.items()},
        "planned_step_seconds_median": statistics.median(planned),
        "even_step_seconds_median": statistics.median(even),
        "num_planned_steps": len(planned),
        "num_even_steps": len(even),
        "uneven_speedup": speedup,
        "predicted_speedup_before_refit": predicted["before"],
        "predicted_speedup_after_refit": predicted["after"],
        "speedup_error_before_refit": abs(predicted["before"] / speedup - 1),
        "speedup_error_after_refit": abs(predicted["after"] / speedup - 1),
        "run_2_error_before_refit_median": statistics.median(s.error(s.before_seconds) for s in result.run_2),
        "run_2_error_after_refit_median": statistics.median(s.error(s.after_seconds) for s in result.run_2),
        "num_run_2_steps": len(result.run_2),
        "max_log_prob_difference": max((record.max_log_prob_difference for record in moved), default=None),
        "max_policy_movement": max(record.max_reference_difference for record in updated),
        "tokens_per_second_median": statistics.median(record.tokens_per_second for record in updated),
        "phase_seconds": {
            name: dict(zip(("predicted", "measured", "refitted"), each, strict=True))
            for name, each in result.phases.items()
        },
        "profile_slowdowns": dict(result.slowdowns),
        "replanned_shares": {task: list(shares) for task, shares in result.replanned_shares.items()},
        "replanned_step_seconds": result.replanned_step_seconds,
        "replanned_speedup": replanned_speedup(result),
        "num_replanned_steps": len(result.replanned_seconds[0]),
    }


def print_report(result: LoopResult) -> dict[str, Any]:
    """Print the tables and return the figures."""
    figures = figures_of(result)
    console = Console()
    phases = Table(
        title="predicted, measured, after refit (seconds per step at the planned shares)", title_justify="left"
    )
    for heading in ("phase", "predicted", "measured", "after refit"):
        phases.add_column(heading, justify="left" if heading == "phase" else "right")
    for name, each in result.phases.items():
        phases.add_row(name, *(f"{seconds:.3f}" for seconds in each))
    phases.add_row(
        "step",
        f"{result.predicted_planned['before']:.3f}",
        f"{figures['planned_step_seconds_median']:.3f}",
        f"{result.predicted_planned['after']:.3f}",
    )
    console.print(phases)
    table = Table(title="does it hold", title_justify="left")
    for heading in ("what", "wanted", "found", ""):
        table.add_column(heading)
    for what, wanted, found, holds in verdicts(figures):
        table.add_row(what, wanted, found, "yes" if holds else "NO")
    console.print(table)
    console.print("prompts of a step on cpu-fast+cpu-slow", highlight=False)
    for what, shares in (("planned", result.planned_shares), ("re-planned", result.replanned_shares)):
        console.print(f"  {what}: {shares_text(shares)}", highlight=False)
    for line in company_lines(result.slowdowns):
        console.print(line, highlight=False)
    return figures


def company_lines(slowdowns: Mapping[str, float]) -> list[str]:
    """Say how slow the devices were while profiled, and what it means if the unthrottled one was not alone."""
    factors = ", ".join(f"{device} {factor:.2f} s" for device, factor in slowdowns.items())
    lines = [f"a CPU second took, while the devices were profiled: {factors} (alone 1.00 s, held to one half 2.00 s)"]
    disturbed = [device for device, factor in slowdowns.items() if device not in DUTY and factor > ALONE]
    if disturbed:
        lines.append(
            f"other programs used the core of {', '.join(disturbed)}: plan and predictions are for a machine with that "
            "load, and hold only while it lasts; run this again on an idle machine"
        )
    return lines


def verdicts(figures: Mapping[str, Any]) -> list[tuple[str, str, str, bool]]:
    """(what, wanted, found, holds) of every claim."""
    gain, error = figures["reward_gain"], figures["reward_gain_standard_error"]
    control, control_error = figures["control_gain"], figures["control_gain_standard_error"]
    difference = figures["max_log_prob_difference"]
    return [
        (
            "reward gain over the seeds",
            ">= 3 standard errors",
            f"{gain:.3f} +- {error:.3f}" if error > 0 else f"{gain:.3f}, one seed: no error known",
            error > 0 and gain >= 3 * error,
        ),
        ("", ">= 10 % of the range", f"{gain / REWARD_RANGE:.0%}", gain >= 0.1 * REWARD_RANGE),
        (
            "gain of the control (learning rate 0)",
            "none: within 3 standard errors or 2 % of the range",
            f"{control:.3f} +- {control_error:.3f}",
            abs(control) <= max(3 * control_error, 0.02 * REWARD_RANGE),
        ),
        (
            "planned against even shares",
            ">= 1.25x faster",
            f"{figures['uneven_speedup']:.2f}x ({figures['num_planned_steps']} and {figures['num_even_steps']} steps)",
            figures["uneven_speedup"] >= 1.25,
        ),
        (
            "re-planned against even shares",
            "reported",
            "not tried: other layout"
            if figures["replanned_speedup"] is None
            else f"{figures['replanned_speedup']:.2f}x ({figures['num_replanned_steps']} steps each)",
            True,
        ),
        (
            "predicted ratio",
            "within 15 %",
            f"{figures['predicted_speedup_before_refit']:.2f}x, {figures['speedup_error_before_refit']:.0%} off",
            figures["speedup_error_before_refit"] <= 0.15,
        ),
        (
            "step time of run 2 after the refit",
            "within 20 % (median)",
            f"{figures['run_2_error_after_refit_median']:.0%} "
            f"(before: {figures['run_2_error_before_refit_median']:.0%})",
            figures["run_2_error_after_refit_median"] <= 0.20,
        ),
        (
            "engine and trainer log-probabilities",
            "within 1e-3 after moving > 0.05",
            f"{difference:.1e}, moved {figures['max_policy_movement']:.2f}"
            if difference is not None
            else "never moved",
            difference is not None and difference <= 1e-3,
        ),
    ]
