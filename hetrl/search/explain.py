"""Why a plan is as it is: its critical path, what binds each task, the runner-up, and what more devices would bring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hetrl.cost.estimate import Estimate
from hetrl.cost.evaluate import SYNC_PREFIX
from hetrl.cost.unit import UnitCosts
from hetrl.errors import InfeasibleError
from hetrl.plan.plan import Plan
from hetrl.search.hybrid import solve
from hetrl.search.result import SearchResult
from hetrl.spec.job import Job
from hetrl.spec.topology import Topology
from hetrl.workload.flops import forward_flops

EXPLAIN_BUDGET = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What a task's time goes to, as shares of its seconds, and the fullest of its devices.

    Parameters
    ----------
    limit
        The largest of ``shares``: ``compute``, ``memory bandwidth``, ``links``, ``host link`` or ``optimizer``.
    memory_share
        Memory used over memory allowed on the fullest device while the task runs.
    """

    task: str
    limit: str
    shares: dict[str, float]
    memory_share: float
    memory_term: str


def bindings(job: Job, plan: Plan, estimate: Estimate) -> list[Binding]:
    """Say for every task what binds it.

    Decoding counts as bound by memory bandwidth where one iteration's FLOPs would take its devices less than the time
    of reading their weights once; otherwise as compute.
    """
    result = []
    for task_plan in plan.tasks:
        task = job.workflow.task(task_plan.task)
        figures = estimate.tasks[task.name]
        seconds = max(figures.seconds, 1e-300)
        optimizer = figures.details.get("optimizer_seconds", 0.0)
        body = max(0.0, figures.compute_seconds - optimizer)
        shares = {
            "links": figures.communication_seconds / seconds,
            "host link": figures.switch_seconds / seconds,
            "optimizer": optimizer / seconds,
        }
        where = "compute"
        if task.kind == "generate" and _decodes_from_memory(job, plan, task.name, figures.details):
            prefill = figures.details.get("prefill_seconds", 0.0)
            shares["memory bandwidth"] = max(0.0, body - prefill) / seconds
            shares["compute"] = min(prefill, body) / seconds
        else:
            shares[where] = body / seconds
        fullest, term = _fullest(estimate, task.name, task_plan.devices)
        result.append(
            Binding(
                task=task.name,
                limit=max(shares, key=lambda name: shares[name]),
                shares=shares,
                memory_share=fullest,
                memory_term=term,
            )
        )
    return result


def _decodes_from_memory(job: Job, plan: Plan, name: str, details: object) -> bool:
    assert isinstance(details, dict) or hasattr(details, "get")
    task, replica = job.workflow.task(name), plan.task(name).replicas[0]
    running = float(details.get("concurrency", 1.0))
    flops = forward_flops(task.model, num_sequences=running, new_tokens=1)
    kinds = [job.topology.devices[device].type for device in replica.devices]
    compute = flops / sum(kind.flops_per_second.get(job.precision.dtype, 1.0) for kind in kinds)
    reading = task.model.weight_bytes / sum(kind.memory_bytes_per_second for kind in kinds)
    return reading > compute


def _fullest(estimate: Estimate, interval: str, devices: tuple[int, ...]) -> tuple[float, str]:
    best, term = 0.0, ""
    for device in devices:
        terms = estimate.memory.devices.get(device, {}).get(interval, {})
        used = sum(terms.values()) / estimate.memory.limits[device]
        if used > best:
            best, term = used, max(terms, key=lambda name: terms[name])
    return best, term


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBinding:
    """What a group's time goes to.

    Parameters
    ----------
    limit
        The largest of ``shares``.
    shares
        Of the group's busy seconds, as in `Binding`.
    busy_share
        Busy seconds (tasks and weight syncs) over the step's, or over the period.
    critical
        Its activities on the critical path.
    memory_share
        The fullest of its devices.
    """

    tasks: tuple[str, ...]
    limit: str
    shares: dict[str, float]
    busy_share: float
    critical: tuple[str, ...]
    memory_share: float


def group_bindings(plan: Plan, estimate: Estimate, tasks: Sequence[Binding]) -> list[GroupBinding]:
    """Say for every group what binds it, from what binds its tasks."""
    by_task = {each.task: each for each in tasks}
    result = []
    for group in plan.groups:
        seconds = {name: estimate.tasks[name].seconds for name in group.tasks}
        total = max(sum(seconds.values()), 1e-300)
        shares: dict[str, float] = {}
        for name in group.tasks:
            for limit, share in by_task[name].shares.items():
                shares[limit] = shares.get(limit, 0.0) + share * seconds[name] / total
        syncs = [
            each.seconds
            for each in estimate.transfers
            if each.kind == "weights" and not {each.source, each.target}.isdisjoint(group.tasks)
        ]
        own = (*group.tasks, *(SYNC_PREFIX + name for name in group.tasks))
        result.append(
            GroupBinding(
                tasks=group.tasks,
                limit=max(shares, key=lambda name: shares[name]),
                shares=shares,
                busy_share=(total + sum(syncs)) / estimate.step_seconds,
                critical=tuple(name for name in estimate.schedule.critical_path if name in own),
                memory_share=max(by_task[name].memory_share for name in group.tasks),
            )
        )
    return result


def why_slower(chosen: Estimate, rival: Estimate) -> list[tuple[str, float, float]]:
    """Activities on the rival's critical path that cost it the most.

    Returns
    -------
    list of (name, seconds on the chosen plan's path, seconds on the rival's), largest difference first
        0 seconds where an activity is not on the chosen plan's path, as another group does it meanwhile. Only those
        that lose something.
    """
    mine, theirs = _on_path(chosen), _on_path(rival)
    lost = [(name, mine.get(name, 0.0), seconds) for name, seconds in theirs.items() if seconds > mine.get(name, 0.0)]
    return sorted(lost, key=lambda each: each[1] - each[2])


def _on_path(estimate: Estimate) -> dict[str, float]:
    schedule = estimate.schedule
    return {name: schedule.end[name] - schedule.start[name] for name in schedule.critical_path}


def other_grouping(job: Job, costs: UnitCosts, plan: Plan) -> SearchResult | None:
    """Search again from a plan, to have a runner-up with other groups; None if nothing is found."""
    limited = replace(job, optimizer=replace(job.optimizer, budget=EXPLAIN_BUDGET))
    try:
        return solve(limited, costs, warm_start=plan)
    except InfeasibleError:
        return None


def one_more_device(job: Job, costs: UnitCosts, plan: Plan) -> Iterator[tuple[str, Estimate]]:
    """Device type -> estimate of the best plan found with one more device of it, starting from the plan.

    The device stands in a node of its own, the last, that is otherwise like the first node of its type.
    """
    for kind in job.topology.device_types:
        model = next(node for node in job.topology.nodes if node.device_type.name == kind.name)
        share = 1 / model.num_devices
        extra = replace(
            model,
            id=f"{model.id}-one-more",
            num_devices=1,
            host_ram_bytes=round(model.host_ram_bytes * share),
            host_memory_bytes_per_second=model.host_memory_bytes_per_second * share,
            usd_per_hour=None if model.usd_per_hour is None else model.usd_per_hour * share,
        )
        source = job.topology.nodes.index(model)
        links = dict(job.topology.node_links)
        for (a, b), link in job.topology.node_links.items():
            if a == source:
                links[(len(job.topology.nodes), b)] = link
            if b == source:
                links[(a, len(job.topology.nodes))] = link
        topology = Topology(nodes=(*job.topology.nodes, extra), node_links=links, levels=job.topology.levels)
        larger = replace(job, topology=topology, optimizer=replace(job.optimizer, budget=EXPLAIN_BUDGET))
        yield kind.name, solve(larger, costs, warm_start=plan).estimate
