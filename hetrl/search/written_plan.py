"""Plans written by hand: a short mapping of groups and strategies becomes a plan.

::

    groups:
      - tasks: [actor_generate, reference_score, actor_train]
        nodes: {node-p5-01: 8, node-p4d-01: 8}
      - tasks: [critic_score, critic_train]
        nodes: {node-g6e-01: 4}
    strategies:
      actor_train: {tensor: 4, layers: [31, 30, 10, 9], micro_batch: 1, optimizer_states: host}

A task without a strategy gets the best one that the search finds for its group; a group has strategies for all of
its tasks or for none.
"""

from __future__ import annotations

from typing import Any

from hetrl.errors import Problem, did_you_mean
from hetrl.plan.plan import (
    OPTIMIZER_STATES,
    SHARDINGS,
    WEIGHTS_WHEN_IDLE,
    Group,
    Plan,
    Replica,
    Residency,
    Stage,
    TaskPlan,
)
from hetrl.search.context import ENGINE_CONCURRENCY, SearchContext
from hetrl.search.level3_colocation import task_plan
from hetrl.spec.section import Report, Section
from hetrl.spec.workflow import Task

STRATEGY_KEYS = (
    "tensor",
    "layers",
    "stages",
    "replicas",
    "prompts",
    "micro_batch",
    "recompute",
    "sharding",
    "weights",
    "optimizer_states",
)


def written_plan(context: SearchContext, values: object) -> Plan:
    """Return the plan of a written mapping.

    Raises
    ------
    SpecError
        With everything that is wrong with it.
    """
    report = Report()
    top = Section(values, "", report, ("groups", "strategies"))
    names = [task.name for task in context.job.workflow.tasks]
    strategies = Section(top.raw("strategies"), "strategies", report, names)
    sections = {
        name: Section(strategies.raw(name), f"strategies.{name}", report, STRATEGY_KEYS)
        for name in names
        if strategies.has(name)
    }
    settings = {name: _settings(context.job.workflow.task(name), section) for name, section in sections.items()}
    groups: list[Group] = []
    tasks: list[TaskPlan] = []
    taken = [0] * len(context.nodes)
    mentioned: list[str] = []
    for number, entry in enumerate(top.listing("groups")):
        path, before = f"groups[{number}]", len(report.problems)
        section = Section(entry, path, report, ("tasks", "nodes"))
        members = [str(name) for name in section.listing("tasks")]
        mentioned += members
        for name in members:
            if name not in names:
                report.problem(f"{path}.tasks", "unknown task", name, did_you_mean(name, names) or ", ".join(names))
        counts = _counts(context, section, report, taken)
        if len(report.problems) > before:
            continue
        devices = tuple(
            context.topology.first_device[node] + taken[node] + index
            for node in context.nodes
            for index in range(counts[node])
        )
        groups.append(Group(tasks=tuple(members), devices=devices))
        given = [name for name in members if name in sections]
        if len(given) == len(members):
            for name in members:
                task = context.job.workflow.task(name)
                replicas = _replicas(context, task, sections[name], report, counts, taken)
                if replicas:
                    built = report.attempt(None, TaskPlan, task=name, replicas=replicas, **settings[name])
                    tasks.extend([built] if built is not None else [])
        elif given:
            report.problem(
                path, "strategies for all tasks of a group, or for none", ", ".join(given), ", ".join(members)
            )
        else:
            choice = context.steps.group(tuple(sorted(names.index(name) for name in members)), context.counts(counts))
            if choice is None:
                report.problem(path, "these tasks do not fit on these devices in any way", ", ".join(members))
            else:
                of_nodes = [
                    range(first + start, first + start + count)
                    for first, start, count in zip(context.topology.first_device, taken, counts, strict=True)
                ]
                tasks.extend(
                    task_plan(context, option, of_nodes, context.finder.exact_shares(option))
                    for option in choice.options
                )
        taken = [start + count for start, count in zip(taken, counts, strict=True)]
    if not groups and not report.problems:
        report.problem("groups", "no groups", valid="a list of {tasks, nodes}")
    if report.problems:
        report.problems.extend(_forgotten(names, set(mentioned)))
    report.raise_if_any()
    return Plan(groups=tuple(groups), tasks=tuple(sorted(tasks, key=lambda plan: names.index(plan.task))))


def _counts(context: SearchContext, section: Section, report: Report, taken: list[int]) -> list[int]:
    ids = [node.id for node in context.topology.nodes]
    nodes = Section(section.raw("nodes"), section.at("nodes"), report, ids)
    before = len(report.problems)
    counts = [nodes.count(name, 0, minimum=0) if nodes.has(name) else 0 for name in ids]
    for node, count in enumerate(counts):
        free = context.topology.nodes[node].num_devices - taken[node]
        if count > free:
            report.problem(nodes.at(ids[node]), "more devices than are left on the node", count, f"at most {free}")
    if not any(counts) and len(report.problems) == before:
        report.problem(nodes.path, "a group needs devices", valid="node id: number of devices")
    return counts


def _settings(task: Task, section: Section) -> dict[str, Any]:
    """Read what a strategy says beside its layout."""
    return {
        "micro_batch_size": section.count("micro_batch", ENGINE_CONCURRENCY if task.kind == "generate" else 1),
        "recompute": section.flag("recompute", False),
        "sharding": section.text("sharding", "none", choices=SHARDINGS),
        "residency": Residency(
            weights_when_idle=section.text("weights", "resident", choices=WEIGHTS_WHEN_IDLE),
            optimizer_states=section.text("optimizer_states", "device", choices=OPTIMIZER_STATES),
        ),
    }


def _replicas(
    context: SearchContext, task: Task, section: Section, report: Report, counts: list[int], taken: list[int]
) -> tuple[Replica, ...]:
    """Read a strategy's layout, cut from its group's devices; empty if it has problems."""
    degree = section.count("tensor", 1)
    layers = (
        section.listing("layers") if section.has("layers") else _even(task.model.num_layers, section.count("stages", 1))
    )
    tensor_groups = [
        tuple(range(start, start + degree))
        for node in context.nodes
        for first in [context.topology.first_device[node] + taken[node]]
        for start in range(first, first + counts[node] - degree + 1, degree)
    ]
    most = len(tensor_groups) // max(1, len(layers))
    if most == 0 or not all(isinstance(each, int) and each > 0 for each in layers):
        report.problem(section.path, f"no room for {len(layers)} stages of {degree} devices each", str(layers))
        return ()
    num_replicas = section.count("replicas", most, maximum=most)
    shares: list[Any] = (
        section.listing("prompts") if section.has("prompts") else _even(context.job.batch.num_prompts, num_replicas)
    )
    if len(shares) != num_replicas or not all(isinstance(each, int) and each >= 0 for each in shares):
        report.problem(
            section.at("prompts"), "one number of prompts for every replica", str(shares), f"{num_replicas} numbers"
        )
        return ()
    return tuple(
        Replica(
            num_prompts=share,
            stages=tuple(
                Stage(num_layers=int(str(count)), devices=tensor_groups[number * len(layers) + stage])
                for stage, count in enumerate(layers)
            ),
        )
        for number, share in enumerate(shares)
    )


def _even(total: int, parts: int) -> list[Any]:
    base, extra = divmod(total, parts)
    return [base + (1 if index < extra else 0) for index in range(parts)]


def missing_tasks(context: SearchContext, plan: Plan) -> list[Problem]:
    """Tasks of the workflow that a written plan forgot."""
    names = [task.name for task in context.job.workflow.tasks]
    return _forgotten(names, {task.task for task in plan.tasks})


def _forgotten(names: list[str], mentioned: set[str]) -> list[Problem]:
    return [
        Problem(path="groups", message="task is in no group", found=name) for name in names if name not in mentioned
    ]
