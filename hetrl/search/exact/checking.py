"""Check a certificate: the readable evaluator's costs, the integer program rebuilt, another solver's optimum.

What is taken from the certificate is which columns and combinations there are. That no other column can win rests on
the solver's bounds; `check_completeness` proves that again from the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hetrl.cost.evaluate import evaluate, memory_problems, task_estimate
from hetrl.cost.residency import plan_memory
from hetrl.cost.unit import UnitCosts
from hetrl.plan.plan import Group, Plan, Replica, Residency, Stage, TaskPlan
from hetrl.search.exact.certificate import partition_name
from hetrl.search.exact.certificate_structure import (
    Verdict,
    check_choices,
    check_removals,
    check_structure,
    equal,
)
from hetrl.search.exact.milp import build_program, mps_text, objective_of, solve_mps
from hetrl.search.exact.problem import ExactProblem, declared_options
from hetrl.search.exact.result import Certificate, CertificateColumn, job_digest
from hetrl.search.exact.solver import solve_exact
from hetrl.search.exact.space import packings
from hetrl.search.level3_colocation import OPTIMIZER_STATES, SHARDINGS, WEIGHTS
from hetrl.spec.job import Job
from hetrl_kernels.options import Option


def check_certificate(
    job: Job, costs: UnitCosts, certificate: Certificate, *, mip: str, progress: Callable[[str], None] | None = None
) -> Verdict:
    """Check everything that a certificate says.

    Parameters
    ----------
    mip
        Solver of the integer program; better another one than the certificate's.
    progress
        Called with what is being checked.
    """
    verdict = Verdict()
    tell = progress or (lambda _: None)
    verdict.expect(
        certificate.job_sha256 == job_digest(job),
        "job_sha256",
        "job is another",
        certificate.job_sha256,
        job_digest(job),
    )
    model, made_with = costs.model, certificate.cost_model
    verdict.expect(
        certificate.cost_model_sha256 == model.digest(),
        "cost_model",
        "cost model is another than the one that the certificate was made with",
        f"{made_with} ({certificate.cost_model_sha256[:12]})",
        f"{model.source} ({model.digest()[:12]})",
    )
    if not verdict.holds:
        return verdict
    problem = ExactProblem(job, costs)
    tell("space")
    space = problem.space.describe()
    verdict.expect(certificate.space == space, "space", "is not the job's", certificate.space, space)
    names = [column.name for column in certificate.columns]
    verdict.expect(len(set(names)) == len(names), "columns", "a name occurs twice", len(names), len(set(names)))
    named = {*certificate.chosen, *(name for each in certificate.combinations for name in each.columns)}
    missing = sorted(named - set(names))
    verdict.expect(not missing, "columns", "are missing", ", ".join(missing[:5]), "every column that is referred to")
    for column in certificate.columns:
        check_structure(job, column, verdict)
    if not verdict.holds:
        return verdict
    check_choices(job, certificate, verdict)
    check_removals(certificate, {partition_name(problem, each) for each in problem.space.partitions}, verdict)
    tell(f"{len(names)} columns")
    for column in certificate.columns:
        _check_column(problem, column, verdict)
    if not verdict.holds:  # costs and a program of such columns would say nothing
        return verdict
    tell("integer program")
    optimum = certificate.optimum_seconds
    tasks = [task.name for task in job.workflow.tasks]
    phases, columns, combinations = certificate.space.phases, certificate.columns, certificate.combinations
    text = mps_text(build_program(tasks, phases, space.classes, columns, combinations, optimum))
    difference = _difference(certificate.mps, text)
    verdict.expect(not difference, "mps", "is not the program of the columns and the fleet", difference, "")
    if difference:  # whatever stands there instead, it is not solved
        return verdict
    answer = solve_mps(certificate.mps, mip)
    verdict.checked[f"integer programs solved by {mip}"] = 1
    best = objective_of(answer.chosen, phases, columns, combinations)
    verdict.expect(answer.status == "optimal", "mps", f"{mip} finds no optimum", answer.status, "optimal")
    verdict.expect(equal(best, optimum), "optimum_seconds", f"{mip} finds another optimum", optimum, best)
    tell(f"{len(combinations)} combinations")
    by_name = {column.name: column for column in columns}
    exact = {frozenset(each.columns): each.exact_seconds for each in combinations}
    exact.setdefault(frozenset(certificate.chosen), optimum)
    for members, seconds in exact.items():
        again = best_seconds(problem, [by_name[name] for name in sorted(members)])
        path = f"combinations.{'+'.join(sorted(members))}"
        verdict.expect(equal(again, seconds), path, "the evaluator finds other seconds", seconds, again)
    verdict.checked["combinations evaluated anew"] = len(exact)
    chosen = exact[frozenset(certificate.chosen)]
    verdict.expect(equal(chosen, optimum), "chosen", "is not the optimum", chosen, optimum)
    return verdict


def check_completeness(job: Job, costs: UnitCosts, certificate: Certificate) -> Verdict:
    """Solve the job anew, without the certificate, and compare the optimum: takes as long as the proof did."""
    verdict = Verdict()
    again = solve_exact(job, costs, mip=None)
    verdict.expect(again.status == "optimal", "optimum_seconds", "could not be proven again", again.status, "optimal")
    found, right = certificate.optimum_seconds, again.objective
    verdict.expect(equal(found, right), "optimum_seconds", "is not the optimum found anew", found, right)
    verdict.checked["proof repeated"] = 1
    return verdict


def _difference(found: str, right: str) -> str:
    """First line in which two programs differ; empty if none."""
    if found == right:
        return ""
    for number, (left, other) in enumerate(zip(found.splitlines(), right.splitlines(), strict=False), start=1):
        if left != other:
            return f"line {number}: {left.strip()!r}, rebuilt {other.strip()!r}"
    return f"{len(found.splitlines())} lines, rebuilt {len(right.splitlines())}"


def _check_column(problem: ExactProblem, column: CertificateColumn, verdict: Verdict) -> None:
    """Realisation, memory, seconds, syncs and loads of a column."""
    path = f"columns.{column.name}"
    job, space = problem.job, problem.space
    capacity = space.capacity.tolist()
    vector = column.vector
    fits = space.admits(vector)
    verdict.expect(fits, f"{path}.vector", "is not one of the space, at most", vector, capacity)
    if not fits:
        return
    counts = tuple(int(each) for each in space.counts(vector))
    found = column.canonical_counts
    verdict.expect(found == counts, f"{path}.canonical_counts", "are not the vector's", found, counts)
    if found != counts:
        return
    options = _declared(problem, column)
    for name in column.tasks:
        where = f"{path}.realisation.{name}"
        verdict.expect(name in options, where, "is not in the declared space", column.realisation.get(name), "")
    if len(options) < len(column.tasks):
        return
    here = range(len(counts))
    plan = Plan(groups=(_group(problem, column, here),), tasks=tuple(_task_plans(problem, column, here)))
    memory = plan_memory(job, plan)
    for each in memory_problems(job, memory):
        verdict.expect(False, f"{path}: {each.path}", each.message, each.found, each.valid)
    for task_plan in plan.tasks:
        name = task_plan.task
        tokens = memory.kv_tokens.get(name, ())
        again = task_estimate(job, job.workflow.task(name), task_plan, problem.costs, tokens).seconds
        said = column.seconds[name]
        verdict.expect(equal(again, said), f"{path}.seconds.{name}", "the evaluator finds other seconds", said, again)
    tasks = [task.name for task in job.workflow.tasks]
    indices = tuple(tasks.index(name) for name in column.tasks)
    syncs = problem.column(indices, column.vector, options.values()).syncs
    rows = problem.relaxed.rows(
        indices,
        {task: np.array([column.seconds[tasks[task]]]) for task in indices},
        {
            target: np.array([syncs.get(target, 0.0)])
            for targets in problem.relaxed.targets.values()
            for target in targets
        },
        1,
    )[0]
    loads = {tasks[task]: float(load) for task, load in enumerate(rows) if load > 0}
    _compare(verdict, f"{path}.sync_seconds", column.sync_seconds, {tasks[task]: each for task, each in syncs.items()})
    _compare(verdict, f"{path}.loads", column.loads, loads)
    verdict.checked["columns costed anew"] = verdict.checked.get("columns costed anew", 0) + 1


def _compare(verdict: Verdict, path: str, found: Mapping[str, float], right: Mapping[str, float]) -> None:
    same = found.keys() == right.keys() and all(equal(found[key], right[key]) for key in right)
    verdict.expect(same, path, "do not follow from the realisation", dict(found), right)


def _declared(problem: ExactProblem, column: CertificateColumn) -> dict[str, Option]:
    """Options of the declared space that a column's realisation names."""
    job = problem.job
    found: dict[str, Option] = {}
    trainers = {job.workflow.task(name).role: name for name in column.tasks if job.workflow.task(name).kind == "train"}
    for name in sorted(column.tasks, key=lambda each: job.workflow.task(each).kind != "train"):
        wanted = column.realisation.get(name)
        if wanted is None:
            continue
        task = job.workflow.task(name)
        trainer = found.get(trainers.get(task.role, "")) if wanted["weights"] == "shared" else None
        if wanted["weights"] == "shared" and trainer is None:
            continue
        for option in declared_options(problem, job.workflow.index(name), column.vector, trainer):
            if _settings(option, engine=task.kind == "generate") == _wanted(wanted, engine=task.kind == "generate"):
                found[name] = option
                break
    return found


def _settings(option: Option, *, engine: bool) -> tuple[object, ...]:
    stages = tuple(tuple((node, layers) for node, layers in replica) for replica in option.stages())
    rest = () if engine else (WEIGHTS[option.weights], tuple(option.shares()))  # an engine's follow from its group
    return (
        stages,
        option.degree,
        option.micro_batch,
        bool(option.recompute),
        SHARDINGS[option.sharding],
        OPTIMIZER_STATES[option.optimizer],
        *rest,
    )


def _wanted(realisation: Mapping[str, Any], *, engine: bool) -> tuple[object, ...]:
    stages = tuple(tuple((node, layers) for node, layers in replica) for replica in realisation["stages"])
    rest = () if engine else (realisation["weights"], tuple(realisation["shares"]))
    return (
        stages,
        realisation["degree"],
        realisation["micro_batch"],
        realisation["recompute"],
        realisation["sharding"],
        realisation["optimizer"],
        *rest,
    )


def best_seconds(problem: ExactProblem, columns: Sequence[CertificateColumn]) -> float:
    """Step seconds of a combination of columns on its best packing, by the readable evaluator; inf if none fits."""
    best = math.inf
    for plan in combination_plans(problem, columns):
        best = min(best, evaluate(problem.job, plan, problem.costs).step_seconds)
    return best


def combination_plans(problem: ExactProblem, columns: Sequence[CertificateColumn]) -> Iterator[Plan]:
    """All plans that a combination of columns stands for: one for each packing of its remainders into nodes."""
    names = [task.name for task in problem.job.workflow.tasks]
    for maps in packings(problem.space, [column.vector for column in columns]):
        taken = [0] * len(problem.job.topology.nodes)
        groups: list[Group] = []
        tasks: list[TaskPlan] = []
        for column, nodes in zip(columns, maps, strict=True):
            to = nodes.tolist()
            groups.append(_group(problem, column, to, taken))
            tasks.extend(_task_plans(problem, column, to, taken))
            for canonical, count in enumerate(column.canonical_counts):
                if count:
                    taken[to[canonical]] += count
        yield Plan(groups=tuple(groups), tasks=tuple(sorted(tasks, key=lambda each: names.index(each.task))))


def _group(
    problem: ExactProblem, column: CertificateColumn, to: Sequence[int], taken: Sequence[int] | None = None
) -> Group:
    first = problem.job.topology.first_device
    devices = sorted(
        first[to[canonical]] + (taken[to[canonical]] if taken else 0) + index
        for canonical, count in enumerate(column.canonical_counts)
        for index in range(count)
    )
    return Group(tasks=column.tasks, devices=tuple(devices))


def _task_plans(
    problem: ExactProblem, column: CertificateColumn, to: Sequence[int], taken: Sequence[int] | None = None
) -> Iterator[TaskPlan]:
    first = problem.job.topology.first_device
    for name in column.tasks:
        given = column.realisation[name]
        used = list(taken) if taken else [0] * len(problem.job.topology.nodes)
        replicas = []
        for stages, share in zip(given["stages"], given["shares"], strict=True):
            placed = []
            for canonical, layers in stages:
                node = to[canonical]
                start = first[node] + used[node]
                used[node] += given["degree"]
                placed.append(Stage(num_layers=layers, devices=tuple(range(start, start + given["degree"]))))
            replicas.append(Replica(stages=tuple(placed), num_prompts=share))
        yield TaskPlan(
            task=name,
            replicas=tuple(replicas),
            micro_batch_size=given["micro_batch"],
            recompute=given["recompute"],
            sharding=given["sharding"],
            residency=Residency(weights_when_idle=given["weights"], optimizer_states=given["optimizer"]),
        )
