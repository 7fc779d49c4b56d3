"""How good a plan is, in words: its gap to a lower bound, or what the exact solver has proven."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetrl.search.chains import objective_of
from hetrl.search.result import SearchResult
from hetrl.spec.job import Job
from hetrl.units import format_seconds

if TYPE_CHECKING:
    from hetrl.search.exact.result import ExactResult


def bound_lines(job: Job, result: SearchResult) -> list[str]:
    """Return the proof's lines, or the one of the lower bound."""
    if result.proof is not None:
        return _proof_lines(job, result.proof)
    if result.lower_bound <= 0:
        return ["lower bound: none found"]
    return [bound_line(job, result.lower_bound, result.gap)]


def bound_line(job: Job, lower_bound: float, gap: float) -> str:
    """Say what no plan can undercut, in the unit of what is minimised."""
    if job.optimizer.minimises_dollars:
        return f"lower bound ${lower_bound:.4g} per step: no plan of the search space is cheaper; gap {gap:.0%}"
    return f"lower bound {format_seconds(lower_bound)}: no plan of the search space is faster; gap {gap:.0%}"


def _proof_lines(job: Job, proof: ExactResult) -> list[str]:
    unit = "$ per step" if job.optimizer.minimises_dollars else "s"
    if proof.status == "optimal" and proof.gap <= 1e-9:
        lines = [f"proven: the optimum of the declared space is {proof.objective:.5g} {unit}"]
        value = objective_of(job, proof.estimate) if proof.estimate is not None else proof.objective
        gain = 1.0 - value / proof.objective
        if gain > 1e-9:
            lines.append(
                f"the plan takes {value:.5g} {unit}, {gain:.2%} less: level 5, or the search, leads out of that space"
            )
    elif proof.status == "optimal":
        lines = [f"proven to be within {proof.gap:.2%} of the best plan of the declared space"]
    else:
        lines = [f"not proven optimal: at most {proof.gap:.2%} from the best plan of the declared space"]
    if proof.stopped_by_time:
        lines.append("the time limit ended the proof (--time-limit)")
    if job.optimizer.minimises_dollars:
        lines.append("no certificate: only optima of step_seconds (or tokens_per_second) have one")
        if proof.status != "optimal" or proof.interrupted:
            lines.append("no price curve: the proof that it starts from was cut off")
    space = proof.space
    lines.append(
        f"declared space: {space.num_partitions} groupings of the tasks, {space.num_vectors} ways to give devices "
        "to a group (in words: search.declared_space of plan.json; docs/exact.md)"
    )
    return lines
