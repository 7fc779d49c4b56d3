"""From a finished search to a certificate: columns and combinations as plain data, the integer program, its answer."""

from __future__ import annotations

from collections.abc import Sequence

from hetrl.search.exact.combining import Incumbent
from hetrl.search.exact.milp import build_program, mps_text, objective_of, solve_program
from hetrl.search.exact.problem import Column, ExactProblem
from hetrl.search.exact.result import (
    Certificate,
    CertificateColumn,
    Combination,
    DeclaredSpace,
    Removal,
    job_digest,
)
from hetrl.search.level3_colocation import OPTIMIZER_STATES, SHARDINGS, WEIGHTS

TOLERANCE = 1e-9


def partition_name(problem: ExactProblem, partition: Sequence[Sequence[int]]) -> str:
    """Write groups of tasks as text: ``generate+score | train``."""
    names = [task.name for task in problem.job.workflow.tasks]
    return " | ".join("+".join(names[task] for task in tasks) for tasks in partition)


def make_certificate(
    problem: ExactProblem,
    space: DeclaredSpace,
    incumbent: Incumbent,
    columns: Sequence[Column],
    removals: Sequence[Removal],
    mip: str,
) -> Certificate:
    """Write the integer program over the columns that are left, and have it solved.

    Raises
    ------
    RuntimeError
        If the integer solver finds another optimum: one of the two is wrong.
    """
    assert incumbent.placed is not None
    best = incumbent.objective
    kept = {id(column): column for column in (*columns, *incumbent.placed.columns)}
    below = [each for each in incumbent.evaluated.values() if each[1] < best or each[0] == incumbent.placed.columns]
    for each in below:
        kept.update({id(column): column for column in each[0]})
    names = {identity: f"x{number}" for number, identity in enumerate(kept)}
    written = tuple(_column(problem, names[identity], column) for identity, column in kept.items())
    combinations = tuple(
        Combination(
            columns=tuple(names[id(column)] for column in members), relaxed_seconds=relaxed, exact_seconds=exact
        )
        for members, relaxed, exact in below
    )
    tasks = [task.name for task in problem.job.workflow.tasks]
    program = build_program(tasks, space.phases, space.classes, written, combinations, best)
    text = mps_text(program)
    answer = solve_program(program, mip)
    found = objective_of(answer.chosen, space.phases, written, combinations)
    if answer.status != "optimal" or abs(found - best) > TOLERANCE * best:
        raise RuntimeError(f"search and integer program disagree: {best!r} and {found!r} ({answer.status}, {mip})")
    return Certificate(
        job_sha256=job_digest(problem.job),
        cost_model=problem.costs.model.source,
        cost_model_sha256=problem.costs.model.digest(),
        space=space,
        columns=written,
        combinations=combinations,
        removals=tuple(removals),
        optimum_seconds=best,
        chosen=tuple(sorted(names[id(column)] for column in incumbent.placed.columns)),
        mps=text,
        solver=mip,
    )


def _column(problem: ExactProblem, name: str, column: Column) -> CertificateColumn:
    tasks = [task.name for task in problem.job.workflow.tasks]
    realisation = {
        tasks[option.task]: {
            "stages": [[[node, layers] for node, layers in stages] for stages in option.stages()],
            "shares": option.shares(),
            "degree": option.degree,
            "micro_batch": option.micro_batch,
            "recompute": bool(option.recompute),
            "sharding": SHARDINGS[option.sharding],
            "weights": WEIGHTS[option.weights],
            "optimizer": OPTIMIZER_STATES[option.optimizer],
        }
        for option in column.options
    }
    return CertificateColumn(
        name=name,
        tasks=tuple(tasks[task] for task in column.tasks),
        vector=column.vector,
        seconds={tasks[option.task]: option.seconds for option in column.options},
        sync_seconds={tasks[task]: seconds for task, seconds in column.syncs.items()},
        loads={tasks[task]: float(load) for task, load in enumerate(column.rows) if load > 0},
        realisation=realisation,
        canonical_counts=tuple(int(each) for each in problem.space.counts(column.vector)),
    )
