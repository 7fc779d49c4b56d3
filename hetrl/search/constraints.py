"""What the user rules out, as the search needs it: nodes a task must stay on or keep off, layouts that stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hetrl.errors import Problem, SpecError
from hetrl.plan.plan import Plan, TaskPlan
from hetrl.search.context import Assignment, Grouping, SearchContext
from hetrl.spec.load_constraints import PATH, constraint_problems


class NodeRules:
    """Constraints as a table: which task may use which node, and which devices it must have.

    Parameters
    ----------
    context
        The job, whose ``optimizer.constraints`` these are.
    start
        The plan whose layouts are kept; needed if any is.

    Raises
    ------
    SpecError
        For unknown tasks or nodes, and for layouts that cannot be kept, all at once.
    """

    def __init__(self, context: SearchContext, start: Plan | None = None) -> None:
        self.context = context
        self.start = start
        constraints = context.job.optimizer.constraints
        tasks = [task.name for task in context.job.workflow.tasks]
        nodes = [node.id for node in context.topology.nodes]
        problems = constraint_problems(constraints, tasks, nodes)
        if not problems:
            problems = kept_problems(context, start)
        if problems:
            raise SpecError(problems)
        self.allowed: NDArray[np.bool_] = np.ones((len(tasks), len(nodes)), dtype=np.bool_)
        for task, listed in constraints.pin.items():
            self.allowed[tasks.index(task)] &= np.isin(nodes, list(listed))
        for task, listed in constraints.forbid.items():
            self.allowed[tasks.index(task)] &= ~np.isin(nodes, list(listed))
        self.kept: dict[int, TaskPlan] = {}  # devices and stages stay, shares and settings need not
        self._needed: dict[tuple[int, ...], NDArray[np.int32]] = {}
        for name in constraints.keep_layout:
            assert start is not None
            plan, number = start.task(name), tasks.index(name)
            self.kept[number] = plan
            stages = [
                [(context.topology.devices[stage.devices[0]].node, stage.num_layers) for stage in replica.stages]
                for replica in plan.replicas
            ]
            context.finder.kept[number] = (len(plan.replicas[0].stages[0].devices), stages)
        self.free = bool(self.allowed.all()) and not self.kept

    def __reduce__(self) -> tuple[type[NodeRules], tuple[SearchContext, Plan | None]]:
        """Travel to another process with the context."""
        return NodeRules, (self.context, self.start)

    def admits(self, tasks: tuple[int, ...], counts: bytes) -> bool:
        """Whether a group of tasks may hold these devices."""
        if self.free or not tasks:
            return True
        held = np.frombuffer(counts, dtype=np.int32)
        if held[~self.allowed[list(tasks)].all(axis=0)].any():
            return False
        return not (held < self.needed(tasks)).any()

    def needed(self, tasks: tuple[int, ...]) -> NDArray[np.int32]:
        """Devices on every node that the kept layouts of a group's tasks hold, those they have in common once."""
        if tasks not in self._needed:
            devices = {device for task in tasks if task in self.kept for device in self.kept[task].devices}
            self._needed[tasks] = np.frombuffer(self.context.device_counts(sorted(devices)), dtype=np.int32)
        return self._needed[tasks]

    def admits_grouping(self, grouping: Grouping) -> bool:
        """Whether kept tasks on common devices are in one group."""
        group_of = {task: number for number, tasks in enumerate(grouping) for task in tasks}
        kept = list(self.kept.items())
        return not any(
            group_of[a] != group_of[b] and not set(mine.devices).isdisjoint(others.devices)
            for number, (a, mine) in enumerate(kept)
            for b, others in kept[:number]
        )

    def admits_plan(self, plan: Plan) -> bool:
        """Whether a whole plan obeys the rules: its groups' nodes, and the kept layouts."""
        names = [task.name for task in self.context.job.workflow.tasks]
        for group in plan.groups:
            counts = self.context.device_counts(group.devices)
            if not self.admits(tuple(names.index(task) for task in group.tasks), counts):
                return False
        return all(_stages(plan.task(kept.task)) == _stages(kept) for kept in self.kept.values())

    def repaired(self, grouping: Grouping, assignment: Assignment) -> Assignment | None:
        """Move devices to groups that may use them and to those that keep them; None if a group ends up with nothing.

        Devices that no group may use stay unused.
        """
        if self.free:
            return assignment
        counts = np.stack([np.frombuffer(key, dtype=np.int32) for key in assignment]).copy()
        may = np.stack([self.allowed[list(tasks)].all(axis=0) for tasks in grouping])
        for group, node in zip(*np.nonzero((counts > 0) & ~may), strict=True):
            others = np.flatnonzero(may[:, node])
            if len(others):
                counts[others[counts[others].sum(axis=1).argmin()], node] += counts[group, node]
            counts[group, node] = 0
        least = np.stack([self.needed(tasks) for tasks in grouping])
        for group, node in zip(*np.nonzero(counts < least), strict=True):
            missing = int(least[group, node] - counts[group, node])
            for other in np.argsort(-(counts[:, node] - least[:, node]), kind="stable"):
                taken = min(missing, max(0, int(counts[other, node] - least[other, node])))
                counts[other, node] -= taken
                counts[group, node] += taken
                missing -= taken
        if (counts.sum(axis=1) == 0).any():
            return None
        repaired = tuple(np.ascontiguousarray(row, dtype=np.int32).tobytes() for row in counts)
        return repaired if all(map(self.admits, grouping, repaired)) else None


def kept_problems(context: SearchContext, start: Plan | None) -> list[Problem]:
    """Layouts that cannot be kept: no plan to take them from, or stages the search cannot express."""
    constraints, topology = context.job.optimizer.constraints, context.topology
    if not constraints.keep_layout:
        return []
    path = f"{PATH}.keep_layout"
    if start is None:
        message = "layouts are kept from a plan, and there is none to start from"
        return [Problem(path=path, message=message, valid="hetrl plan --warm-start plan.json")]
    problems = []
    for name in constraints.keep_layout:
        stages = [stage for replica in start.task(name).replicas for stage in replica.stages]
        if len({stage.tensor_parallel for stage in stages}) > 1:
            problems.append(Problem(path=path, message="stages of several tensor degrees cannot be kept", found=name))
        if any(len({topology.devices[device].node for device in stage.devices}) > 1 for stage in stages):
            problems.append(Problem(path=path, message="tensor groups over several nodes cannot be kept", found=name))
    return problems + contradictions(context, start)


def contradictions(context: SearchContext, start: Plan) -> list[Problem]:
    """Kept layouts on nodes that ``pin`` or ``forbid`` rules out.

    Kept tasks on common devices stay in one group, whose nodes must suit all of them.
    """
    constraints, topology = context.job.optimizer.constraints, context.topology
    problems = []
    for name in constraints.keep_layout:
        held = together(start, name, constraints.keep_layout)
        nodes = dict.fromkeys(topology.nodes[topology.devices[device].node].id for device in sorted(held))
        pinned, forbidden = constraints.pin.get(name), constraints.forbid.get(name, ())
        for key, listed, wrong in (
            ("pin", pinned or (), [node for node in nodes if pinned is not None and node not in pinned]),
            ("forbid", forbidden, [node for node in nodes if node in forbidden]),
        ):
            if wrong:
                message = f"{name} is to stay on {', '.join(nodes)}, which {PATH}.{key}.{name} rules out"
                found = f"{key}: {', '.join(listed)}"
                valid = "one of the two, or a --warm-start with the task on other nodes"
                problems.append(Problem(path=f"{PATH}.keep_layout", message=message, found=found, valid=valid))
    return problems


def together(start: Plan, name: str, kept: Sequence[str]) -> set[int]:
    """Devices of a kept task and of all kept tasks that share devices with it, directly or through others."""
    devices = set(start.task(name).devices)
    for _ in kept:
        for other in kept:
            theirs = set(start.task(other).devices)
            if not devices.isdisjoint(theirs):
                devices |= theirs
    return devices


def _stages(plan: TaskPlan) -> list[list[tuple[int, tuple[int, ...]]]]:
    return [[(stage.num_layers, stage.devices) for stage in replica.stages] for replica in plan.replicas]
