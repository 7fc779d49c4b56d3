"""Level 4: how many devices of which node each group gets, and what a step then costs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from hetrl.cost.evaluate import SYNC_PREFIX, usd_per_hour
from hetrl.cost.schedule import Activity, asynchronous_period, best_schedule
from hetrl.cost.transfers import Transfer, data_transfer, weight_sync
from hetrl.plan.plan import TaskPlan
from hetrl.search.context import DeviceCounts, SearchContext
from hetrl.search.level3_colocation import Colocation, GroupChoice
from hetrl.units import GIB
from hetrl.workload.memory import train_state_bytes_per_parameter

Grouping = tuple[tuple[str, ...], ...]
Assignment = tuple[DeviceCounts, ...]

INFEASIBLE_COST = 1e12
"""Cost of an infeasible assignment; more for each group that fits nothing, graded by how much memory it lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A grouping with an assignment and its cost (seconds of a step, or the chosen objective)."""

    grouping: Grouping
    assignment: Assignment
    cost: float

    @property
    def feasible(self) -> bool:
        """Whether every group fits on its devices."""
        return self.cost < INFEASIBLE_COST


class AssignmentCost:
    """Cost of (grouping, assignment), composed from memoised groups."""

    def __init__(self, context: SearchContext) -> None:
        self.context = context
        self.colocation = Colocation(context)
        self._costs: dict[tuple[Grouping, Assignment], float] = {}
        self._bounds: dict[tuple[Grouping, Assignment], float] = {}
        self._transfers: dict[tuple[int, int, bool], Transfer] = {}

    def choices(self, grouping: Grouping, assignment: Assignment) -> list[GroupChoice | None]:
        """Best combination of every group."""
        return [self.colocation.group(names, counts) for names, counts in zip(grouping, assignment, strict=True)]

    @property
    def num_costed(self) -> int:
        """Assignments costed exactly so far."""
        return len(self._costs)

    def cost(self, grouping: Grouping, assignment: Assignment, *, cutoff: float = math.inf) -> float:
        """Objective of the assignment; at least `INFEASIBLE_COST` if a group does not fit.

        Where a lower bound already reaches ``cutoff``, the bound is returned and nothing else is worked out.
        """
        key = (grouping, assignment)
        if key not in self._costs:
            bound = self.lower_bound(grouping, assignment)
            if bound >= cutoff:
                self.context.counts.cuts["BOUND"] += 1
                return bound
            self._costs[key] = self._cost(grouping, assignment)
        return self._costs[key]

    def lower_bound(self, grouping: Grouping, assignment: Assignment) -> float:
        """Longest path with every task at its fastest on its group's devices, alone, without transfers.

        Only seconds have this bound; for another objective, or where a task has no option at all, it is 0.
        """
        job = self.context.job
        if job.optimizer.objective != "step_seconds":
            return 0.0
        key = (grouping, assignment)
        if key not in self._bounds:
            group_of: dict[str, int] = {}
            fastest: dict[str, float] = {}
            for number, (names, counts) in enumerate(zip(grouping, assignment, strict=True)):
                for name in names:
                    group_of[name] = number
                    fastest[name] = self._fastest(name, names, counts)
            activities = [
                Activity(
                    name=task.name,
                    seconds=fastest[task.name],
                    groups=(group_of[task.name],),
                    needs=tuple((need, 0.0) for need in task.needs),
                )
                for task in job.workflow.tasks
            ]
            if job.staleness > 0:
                self._bounds[key] = asynchronous_period(activities, job.staleness)
            else:
                self._bounds[key] = best_schedule(activities).seconds
        return self._bounds[key]

    def _fastest(self, name: str, names: Sequence[str], counts: DeviceCounts) -> float:
        task = self.context.job.workflow.task(name)
        trainer = next((each for each in self.context.job.workflow.tasks if each.role == task.role and each.kind == "train"), None)
        if task.kind == "score" and trainer is not None and trainer.name in names:
            return 0.0  # may share the trainer's layout, which its own options need not contain
        options = self.colocation.task_options(task, counts)
        return options[0].seconds if options else 0.0

    def _cost(self, grouping: Grouping, assignment: Assignment) -> float:
        choices = self.choices(grouping, assignment)
        lacking = [
            self._shortage(names, counts)
            for names, counts, choice in zip(grouping, assignment, choices, strict=True)
            if choice is None
        ]
        if lacking:
            return INFEASIBLE_COST * sum(lacking)
        found = [choice for choice in choices if choice is not None]
        host = sum(choice.host for choice in found)
        if any(host > [node.host_ram_bytes for node in self.context.topology.nodes]):
            return 2 * INFEASIBLE_COST
        activities = self._activities(grouping, found)
        if self.context.job.staleness > 0:
            seconds = asynchronous_period(activities, self.context.job.staleness)
        else:
            seconds = best_schedule(activities).seconds
        if self.context.job.optimizer.objective == "usd_per_step":
            return seconds * self._usd_per_second(assignment, found)
        return seconds

    def _usd_per_second(self, assignment: Assignment, choices: Sequence[GroupChoice]) -> float:
        devices: set[int] = set()
        offset = [0] * len(self.context.nodes)
        for counts, choice in zip(assignment, choices, strict=True):
            used = {device for plan in choice.plans for device in plan.devices}
            devices.update(device + offset[self.context.topology.devices[device].node] for device in used)
            offset = [start + count for start, count in zip(offset, counts, strict=True)]
        hourly = usd_per_hour(self.context.job, devices)
        return math.inf if hourly is None else hourly / 3600

    def _activities(self, grouping: Grouping, choices: Sequence[GroupChoice]) -> list[Activity]:
        workflow = self.context.job.workflow
        group_of = {name: number for number, names in enumerate(grouping) for name in names}
        plans: dict[str, TaskPlan] = {}
        seconds: dict[str, float] = {}
        for names, choice in zip(grouping, choices, strict=True):
            for name, plan, taken in zip(names, choice.plans, choice.seconds, strict=True):
                plans[name], seconds[name] = plan, taken
        activities = []
        for task in workflow.tasks:
            needs = []
            for need in task.needs:
                same = group_of[need] == group_of[task.name] and plans[need].devices == plans[task.name].devices
                needs.append((need, self._data(need, plans[need], task.name, plans[task.name], same).seconds))
            activities.append(
                Activity(name=task.name, seconds=seconds[task.name], groups=(group_of[task.name],), needs=tuple(needs))
            )
        for source in workflow.tasks:
            for target in workflow.tasks:
                if source.kind != "train" or target.role != source.role or target.kind == "train":
                    continue
                if plans[target.name].residency.weights_when_idle == "shared":
                    continue
                sync = self._sync(source.name, plans[source.name], target.name, plans[target.name])
                activities.append(
                    Activity(
                        name=SYNC_PREFIX + target.name,
                        seconds=sync.seconds,
                        groups=tuple(sorted({group_of[source.name], group_of[target.name]})),
                        needs=((source.name, 0.0), (target.name, 0.0)),
                    )
                )
        return activities

    # plans live as long as the memo of groups, so their ids identify them
    def _data(self, source: str, source_plan: TaskPlan, target: str, target_plan: TaskPlan, same: bool) -> Transfer:
        key = (id(source_plan), id(target_plan), same)
        if key not in self._transfers:
            task = self.context.job.workflow.task
            self._transfers[key] = data_transfer(
                self.context.job, task(source), source_plan, task(target), target_plan, same_devices=same
            )
        return self._transfers[key]

    def _sync(self, source: str, source_plan: TaskPlan, target: str, target_plan: TaskPlan) -> Transfer:
        key = (id(source_plan), id(target_plan), True)
        if key not in self._transfers:
            task = self.context.job.workflow.task
            self._transfers[key] = weight_sync(
                self.context.job, self.context.costs.model, task(source), source_plan, task(target), target_plan
            )
        return self._transfers[key]

    def _shortage(self, names: Sequence[str], counts: DeviceCounts) -> float:
        """1 plus the missing memory relative to what the group has: grades infeasible groups."""
        job = self.context.job
        needed = 0.0
        each = train_state_bytes_per_parameter(job.precision)
        for name in names:
            task = job.workflow.task(name)
            per_parameter = each.weights + (each.gradients if task.kind == "train" else 0)
            needed += task.model.num_parameters * per_parameter
        has = sum(
            count * job.topology.nodes[node].device_type.memory_bytes for node, count in zip(self.context.nodes, counts, strict=True)
        )
        return 1.0 + needed / max(has, GIB)


def aligned_assignment(context: SearchContext, num_groups: int, rng: random.Random) -> Assignment:
    """A random node-aligned assignment: whole nodes, or halves where there are fewer nodes than groups need."""
    blocks: list[tuple[int, int]] = []
    sizes = [node.num_devices for node in context.topology.nodes]
    parts = 1
    while parts < 8 and sum(min(parts, size) for size in sizes) < 2 * num_groups:
        parts *= 2
    for node, size in enumerate(sizes):
        pieces = min(parts, size)
        base, extra = divmod(size, pieces)
        blocks.extend((node, base + (1 if piece < extra else 0)) for piece in range(pieces))
    rng.shuffle(blocks)
    counts = [[0] * len(sizes) for _ in range(num_groups)]
    for number, (node, size) in enumerate(blocks):
        group = number if number < num_groups else rng.randrange(num_groups)
        counts[group][node] += size
    return tuple(tuple(each) for each in counts)


def random_move(context: SearchContext, assignment: Assignment, rng: random.Random, *, block: int) -> Assignment:
    """Move devices of one node between two groups, or swap blocks of two nodes; multiples of ``block`` where possible.

    Returns the same assignment if the drawn move is not possible.
    """
    num_groups = len(assignment)
    if num_groups < 2:
        return assignment
    counts = [list(each) for each in assignment]
    node = rng.randrange(len(context.nodes))
    source, target = rng.sample(range(num_groups), 2)
    if counts[source][node] == 0:
        source, target = target, source
    if counts[source][node] == 0:
        return assignment
    whole = counts[source][node]
    amount = whole if rng.random() < 0.3 else min(block, whole)
    counts[source][node] -= amount
    counts[target][node] += amount
    if len(context.nodes) > 1 and rng.random() < 0.5:  # and something back from another node
        other = rng.randrange(len(context.nodes))
        if other != node and counts[target][other] > 0:
            back = counts[target][other] if rng.random() < 0.3 else min(block, counts[target][other])
            counts[target][other] -= back
            counts[source][other] += back
    if any(not any(each) for each in counts):
        return assignment
    return tuple(tuple(each) for each in counts)


def anneal(
    cost: AssignmentCost,
    start: Candidate,
    rng: random.Random,
    *,
    num_moves: int,
    block: int,
    start_temperature: float = 0.10,
    end_temperature: float = 0.005,
) -> Candidate:
    """Simulated annealing over assignments of one grouping; temperatures are relative to the current cost.

    Returns the best candidate seen, never worse than ``start``.
    """
    current = best = start
    for move in range(num_moves):
        proposal = random_move(cost.context, current.assignment, rng, block=block)
        threshold = rng.random()
        if proposal == current.assignment:
            continue
        temperature = start_temperature * (end_temperature / start_temperature) ** (move / max(1, num_moves - 1))
        accept_below = current.cost * (1.0 - temperature * math.log(max(threshold, 1e-12)))
        proposed = cost.cost(start.grouping, proposal, cutoff=accept_below)
        if proposed < accept_below:
            current = Candidate(grouping=start.grouping, assignment=proposal, cost=proposed)
            if current.cost < best.cost:
                best = current
    return best
