"""Random groups and plans, and how far the kernels' figures are from the readable evaluator's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from hetrl.cost.evaluate import evaluate, task_estimate
from hetrl.cost.residency import task_memory
from hetrl.search.constraints import NodeRules
from hetrl.search.context import Assignment, Candidate, Grouping, SearchContext
from hetrl.search.level1_grouping import set_partitions
from hetrl.search.level3_colocation import task_plan
from hetrl.search.level4_assignment import Starts
from hetrl.search.level5_placement import place
from hetrl_kernels.options import Option


def relative(a: float, b: float) -> float:
    """Return the relative difference."""
    return abs(a - b) / max(abs(a), abs(b), 1e-300)


def random_assignments(context: SearchContext, seed: int) -> Iterator[tuple[Grouping, Assignment]]:
    """Yield groupings with starting assignments, without end."""
    rng = random.Random(seed)
    starts = Starts(context, rng)
    groupings = [
        each for each in set_partitions(len(context.job.workflow.tasks)) if len(each) <= context.topology.num_devices
    ]
    while True:
        grouping = rng.choice(groupings)
        yield grouping, starts.proportional(grouping, 1.5) if rng.random() < 0.5 else starts.aligned(len(grouping))


BARREN = 100


def random_options(context: SearchContext, seed: int) -> Iterator[Option]:
    """Yield options of random tasks on random devices, engines beside others included, without repetition.

    Ends when as many assignments in a row as `BARREN` bring none that is new: small fleets have only so many.
    """
    seen: set[int] = set()
    keep: list[Option] = []
    barren = 0
    for grouping, assignment in random_assignments(context, seed):
        before = len(keep)
        for tasks, counts in zip(grouping, assignment, strict=True):
            found = [option for task in tasks for option in context.steps.alone(task, counts)]
            choice = context.steps.group(tasks, counts)
            for option in (*found, *(choice.options if choice is not None else ())):
                if id(option) not in seen:
                    seen.add(id(option))
                    keep.append(option)
                    yield option
        barren = barren + 1 if len(keep) == before else 0
        if barren == BARREN:
            return


def option_error(context: SearchContext, option: Option) -> float:
    """Largest relative difference of an option's seconds and bytes to the readable evaluator's."""
    job = context.job
    task = job.workflow.tasks[option.task]
    devices = [job.topology.devices_of(node) for node in context.nodes]
    plan = task_plan(context, option, devices, option.shares(), keep_idle=True)
    worst = relative(task_estimate(job, task, plan, context.costs, tuple(option.kv_tokens())).seconds, option.seconds)
    # the search sizes memory for shares that may grow to all prompts
    everything = replace(
        plan, replicas=tuple(replace(each, num_prompts=job.batch.num_prompts) for each in plan.replicas)
    )
    most: dict[int, list[float]] = {}
    for device, rank in task_memory(job, task, everything).items():
        node = most.setdefault(job.topology.devices[device].node, [0.0] * 4)
        node[:3] = [
            max(pair) for pair in zip(node, (rank.active_bytes, rank.idle_bytes, rank.sync_bytes), strict=False)
        ]
        node[3] += rank.host
    for node, figures in option.node_bytes().items():
        for mine, theirs in zip(figures, most[node], strict=True):
            if len(context.nodes) <= 32:
                worst = max(worst, relative(mine, theirs))
            else:  # nodes that are alike share one cell, which keeps the largest
                worst = max(worst, relative(mine, theirs) if mine < theirs else 0.0)
    return worst


def step_error(context: SearchContext, grouping: Grouping, assignment: Assignment) -> float | None:
    """Relative difference of a whole step's seconds; None if the assignment does not fit."""
    cost = context.steps.cost(grouping, assignment, float("inf"))
    candidate = Candidate(grouping=grouping, assignment=assignment, cost=cost)
    if not candidate.feasible:
        return None
    plan = place(NodeRules(context), candidate, exact_shares=False)
    estimate = evaluate(context.job, plan, context.costs)
    # device by device an engine may find more room than the search's node by node; never less
    return relative(estimate.step_seconds, cost) if estimate.step_seconds > cost else 0.0
