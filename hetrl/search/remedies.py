"""Changes of a job for which nothing fits, each tried: only those are named with which the search finds a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hetrl.cost.estimate import Estimate
from hetrl.cost.unit import UnitCosts
from hetrl.errors import InfeasibleError
from hetrl.plan.plan import Plan
from hetrl.spec.job import Constraints, Job
from hetrl.spec.topology import Node, Topology

REMEDY_BUDGET = 300
"""Assignments that a search for a remedy proposes at most."""
LORA_RANK = 16
MARGINS = (0.05, 0.02, 0.0)
MOST_DEVICES = 512
"""Fleets do not grow beyond this; larger ones are asked for no more nodes."""


def remedies(job: Job, costs: UnitCosts, start: Plan | None = None) -> Iterator[str]:
    """Yield changes with which there is a plan that fits, of each kind the smallest one tried.

    Parameters
    ----------
    start
        The plan whose layouts the job may ask to keep.
    """
    optimizer, precision = job.optimizer, job.precision

    def fits(changed: Job) -> bool:
        budget = min(REMEDY_BUDGET, optimizer.budget or REMEDY_BUDGET)
        quick = replace(changed, optimizer=replace(changed.optimizer, budget=budget))
        return found_plan(quick, costs, start) is not None

    if optimizer.constraints != Constraints() and fits(
        replace(job, optimizer=replace(optimizer, constraints=Constraints()))
    ):
        yield "fewer or other constraints"
    if optimizer.executable and fits(replace(job, optimizer=replace(optimizer, executable=False))):
        yield "optimizer.executable: false, which admits plans this version cannot launch yet"
    for margin in MARGINS:
        if margin < optimizer.memory_safety_margin and fits(
            replace(job, optimizer=replace(optimizer, memory_safety_margin=margin))
        ):
            yield f"an optimizer.memory_safety_margin of {margin:g} (now {optimizer.memory_safety_margin:g})"
            break
    if precision.lora_rank == 0 and fits(replace(job, precision=replace(precision, lora_rank=LORA_RANK))):
        yield f"LoRA (precision.lora_rank, tried with {LORA_RANK}), which trains adapters only"
    for number, larger in larger_fleets(job):
        if fits(larger):
            node = roomiest(job.topology)
            nodes = "node" if number == 1 else "nodes"
            yield f"{number} more {nodes} like {node.id} ({node.num_devices} x {node.device_type.name})"
            break


def found_plan(job: Job, costs: UnitCosts, start: Plan | None) -> Estimate | None:
    """Search for a plan that fits, and return its estimate."""
    from hetrl.search.hybrid import solve  # which explains infeasible jobs with this module

    try:
        return solve(job, UnitCosts(costs.model, job.precision), warm_start=start, explain=False).estimate
    except InfeasibleError:
        return None


def larger_fleets(job: Job) -> Iterator[tuple[int, Job]]:
    """Yield the job with 1, 2, 4, ... more nodes like the one with the most device memory."""
    topology = job.topology
    node = roomiest(topology)
    source, first = topology.nodes.index(node), len(topology.nodes)
    number = 1
    while topology.num_devices + number * node.num_devices <= MOST_DEVICES:
        copies = range(first, first + number)
        links = dict(topology.node_links)
        for (a, b), link in topology.node_links.items():
            links |= {(copy, b): link for copy in copies if a == source}
            links |= {(a, copy): link for copy in copies if b == source}
        nodes = (*topology.nodes, *(replace(node, id=f"{node.id}-more-{copy}") for copy in copies))
        yield number, replace(job, topology=Topology(nodes=nodes, node_links=links, levels=topology.levels))
        number *= 2


def roomiest(topology: Topology) -> Node:
    """Return the node with the most device memory."""
    return max(topology.nodes, key=lambda node: node.num_devices * node.device_type.memory_bytes)
