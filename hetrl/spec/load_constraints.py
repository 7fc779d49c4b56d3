"""The ``optimizer.constraints`` section: what plans may not do, checked against the job's tasks and nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetrl.errors import Problem, did_you_mean
from hetrl.spec.job import Constraints, OptimizerSettings
from hetrl.spec.section import Report, Section
from hetrl.spec.topology import Topology

CONSTRAINT_KEYS = ("pin", "forbid", "keep_layout", "max_usd_per_step")
PATH = "optimizer.constraints"


def read_constraints(values: object, path: str, report: Report) -> Constraints:
    """Return the section; names are checked by `constraint_problems` once tasks and nodes are known."""
    section = Section(values, path, report, CONSTRAINT_KEYS)
    limit = section.number("max_usd_per_step", 0.0, minimum=1e-9) if section.has("max_usd_per_step") else None
    return Constraints(
        pin=_nodes_of_tasks(section, "pin", report),
        forbid=_nodes_of_tasks(section, "forbid", report),
        keep_layout=_names(section.raw("keep_layout"), section.at("keep_layout"), report, "a list of tasks"),
        max_usd_per_step=limit,
    )


def _nodes_of_tasks(section: Section, key: str, report: Report) -> dict[str, tuple[str, ...]]:
    values = section.raw(key)
    if values is None:
        return {}
    valid = "a mapping of tasks to node ids, e.g. {actor_train: [node-p5-01]}"
    if not isinstance(values, dict):
        report.problem(section.at(key), "must be a mapping", values, valid)
        return {}
    return {
        str(task): _names(listed, f"{section.at(key)}.{task}", report, "a list of node ids")
        for task, listed in values.items()
    }


def _names(values: object, path: str, report: Report, valid: str) -> tuple[str, ...]:
    """Return a list of names; a single one may stand without brackets."""
    if values is None:
        return ()
    listed = [values] if isinstance(values, str) else values
    if not isinstance(listed, list) or not listed or not all(isinstance(each, str) and each for each in listed):
        report.problem(path, "must be a list of names", values, valid)
        return ()
    return tuple(listed)


def constraint_problems(constraints: Constraints, tasks: Sequence[str], nodes: Sequence[str]) -> list[Problem]:
    """Unknown tasks and nodes, and tasks that are left without any node."""
    problems = []

    def check(path: str, what: str, found: str, known: Sequence[str]) -> None:
        if found not in known:
            valid = did_you_mean(found, known) or ", ".join(known[:20])
            problems.append(Problem(path=path, message=f"unknown {what}", found=found, valid=valid))

    for name, rules in (("pin", constraints.pin), ("forbid", constraints.forbid)):
        for task, listed in rules.items():
            check(f"{PATH}.{name}", "task", task, tasks)
            for node in listed:
                check(f"{PATH}.{name}.{task}", "node", node, nodes)
    for task in constraints.keep_layout:
        check(f"{PATH}.keep_layout", "task", task, tasks)
    for task in dict.fromkeys((*constraints.pin, *constraints.forbid)):
        allowed = set(constraints.pin.get(task, nodes)) - set(constraints.forbid.get(task, ()))
        if task in tasks and not allowed & set(nodes) and not problems:
            problems.append(
                Problem(path=PATH, message=f"no node is left for {task}", found=f"{len(nodes)} nodes, all ruled out")
            )
    return problems


def solver_problems(optimizer: OptimizerSettings) -> list[Problem]:
    """Constraints that the job's solver does not know."""
    if optimizer.solver != "ilp":
        return []
    return [
        Problem(
            path=f"{PATH}.{key}",
            message="the exact solver knows no constraints beyond the job's own",
            found=_as_yaml(value),
            valid="solver: hybrid",
            rule="SOLVER",
        )
        for key in CONSTRAINT_KEYS
        if (value := getattr(optimizer.constraints, key))
    ]


def _as_yaml(value: object) -> str:
    """Return the value of a key as one would write it on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_as_yaml(each)}" for key, each in value.items()) + "}"
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def price_problems(optimizer: OptimizerSettings, topology: Topology) -> list[Problem]:
    """Nodes without a price, where the objective or a constraint is about dollars."""
    if not optimizer.minimises_dollars and optimizer.constraints.max_usd_per_step is None:
        return []
    what = f"objective {optimizer.objective}" if optimizer.minimises_dollars else "constraints.max_usd_per_step"
    return [
        Problem(
            path=f"cluster_topology.nodes[{number}].usd_per_hour",
            message=f"no price known for {node.id}, which optimizer.{what} needs",
            valid="dollars per hour of the whole node",
        )
        for number, node in enumerate(topology.nodes)
        if node.usd_per_hour is None
    ][:20]
