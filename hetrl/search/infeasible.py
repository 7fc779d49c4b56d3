"""When nothing fits: which limit binds, the dominant term of each task, and the smallest changes that help."""

from __future__ import annotations

import math
from dataclasses import replace

from hetrl.plan.plan import Plan
from hetrl.search.context import SearchContext
from hetrl.search.remedies import found_plan, remedies
from hetrl.spec.job import Constraints
from hetrl.spec.load_constraints import PATH
from hetrl.units import format_bytes, format_seconds
from hetrl.workload.flops import lora_parameters
from hetrl.workload.memory import train_state_bytes_per_parameter

ENOUGH_BYTES = 10**16
"""Host memory of a node that holds whatever a plan puts there."""


def explain_infeasible(context: SearchContext, start: Plan | None = None) -> tuple[str, list[str]]:
    """Return the binding limit in one sentence, and lines of reasons and remedies.

    A price limit is the reason if there is a plan without it. Otherwise each task is tried alone on the whole fleet:
    if one fits nowhere even then, it is the reason, else the sum of what all tasks must hold is.

    Parameters
    ----------
    start
        The plan that the search started from, whose layouts the job may ask to keep.
    """
    job = context.job
    dear = too_dear(context, start)
    if dear:
        return dear, constraint_lines(job.optimizer.constraints)
    margin = 1.0 - job.optimizer.memory_safety_margin
    usable = sum(node.num_devices * node.device_type.memory_bytes for node in job.topology.nodes) * margin
    each = train_state_bytes_per_parameter(job.precision)
    reasons = []
    stuck = []
    least_total = 0.0
    for task in job.workflow.tasks:
        parameters = task.model.num_parameters
        if task.kind == "train":
            rank = job.precision.lora_rank
            trained = lora_parameters(task.model, rank) if rank else parameters
            least = parameters * each.weights + trained * each.gradients
            how = f"adapters of rank {rank}" if rank else f"{each.total} bytes per parameter"
            line = (
                f"{task.name}: {format_bytes(least + trained * each.optimizer)} of training state "
                f"({how}), {format_bytes(least)} with optimizer states on the host"
            )
        else:
            least = parameters * each.weights
            line = f"{task.name}: {format_bytes(least)} of weights"
        least_total = max(least_total, least)
        if not context.steps.alone(job.workflow.index(task.name), context.all_devices):
            stuck.append(task.name)
            line += "; does not fit even alone on the whole fleet"
        reasons.append(line)
    if stuck:
        message = f"no plan fits: {', '.join(stuck)} cannot be placed alone on all {job.topology.num_devices} devices"
    else:
        message = f"no plan fits: the tasks' states together exceed {format_bytes(usable)} of usable device memory"
    short = short_hosts(context, start)
    if short:
        message = "no plan fits: host memory of " + ", ".join(short)
        reasons.append("would help: more host_ram on these nodes; with it there is a plan that fits")
    limits = constraint_lines(job.optimizer.constraints)
    if limits and not stuck:
        message = "no plan fits within the constraints, or the search found none that does"
        reasons.extend(limits)
    kind = max(job.topology.device_types, key=lambda device: device.memory_bytes)
    missing = max(0.0, least_total - usable)
    if missing > 0:
        more = math.ceil(missing / (kind.memory_bytes * margin))
        reasons.append(f"{format_bytes(missing)} are missing: at least {more} more {kind.name}")
    tried = [f"would help: {each}" for each in remedies(job, context.costs, start)]
    reasons.extend(tried or ["nothing that was tried helps by itself: other margins, adapters only, more nodes"])
    return message, reasons


def too_dear(context: SearchContext, start: Plan | None) -> str:
    """Return what the cheapest plan costs if the price limit is what no plan keeps; empty if another limit binds."""
    job = context.job
    constraints = job.optimizer.constraints
    if constraints.max_usd_per_step is None:
        return ""
    unlimited = replace(
        job.optimizer, objective="usd_per_step", constraints=replace(constraints, max_usd_per_step=None)
    )
    cheapest = found_plan(replace(job, optimizer=unlimited), context.costs, start)
    if cheapest is None:
        return ""
    assert cheapest.usd_per_step is not None
    return (
        f"no plan found costs at most ${constraints.max_usd_per_step:g} per step: the cheapest found costs "
        f"${cheapest.usd_per_step:.4g} ({format_seconds(cheapest.step_seconds)} per step)"
    )


def short_hosts(context: SearchContext, start: Plan | None) -> list[str]:
    """Return the nodes whose host memory no plan fits into, with what a plan holds there; none if another limit binds.

    The job is searched again with hosts that hold everything.
    """
    job, topology = context.job, context.job.topology
    if all(node.host_ram_bytes >= ENOUGH_BYTES for node in topology.nodes):
        return []
    nodes = tuple(replace(node, host_ram_bytes=ENOUGH_BYTES) for node in topology.nodes)
    found = found_plan(replace(job, topology=replace(topology, nodes=nodes)), context.costs, start)
    if found is None:
        return []
    return [
        f"{node.id} (a plan holds {format_bytes(held)} there, it has {format_bytes(node.host_ram_bytes)})"
        for node, held in zip(topology.nodes, found.memory.hosts.values(), strict=True)
        if held > node.host_ram_bytes
    ]


def constraint_lines(constraints: Constraints) -> list[str]:
    """Return the user's constraints in words, each with its path."""
    lines = [f"{PATH}.pin: {task} only on {', '.join(nodes)}" for task, nodes in constraints.pin.items()]
    lines += [f"{PATH}.forbid: {task} not on {', '.join(nodes)}" for task, nodes in constraints.forbid.items()]
    lines += [f"{PATH}.keep_layout: {task}" for task in constraints.keep_layout]
    if constraints.max_usd_per_step is not None:
        lines.append(f"{PATH}.max_usd_per_step: at most {constraints.max_usd_per_step:g} $ per step")
    return lines
