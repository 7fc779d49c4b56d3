"""What the user rules out: nodes a task must stay on or keep off, and a price limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hetrl.errors import Problem, SpecError, did_you_mean
from hetrl.search.context import Assignment, Grouping, SearchContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Limits on plans beyond the job's own.

    Parameters
    ----------
    pin
        Task -> ids of the only nodes its group may use.
    forbid
        Task -> ids of nodes its group must not use.
    max_usd_per_step
        Highest price of one step; None for no limit.
    """

    pin: Mapping[str, Sequence[str]] = field(default_factory=dict)
    forbid: Mapping[str, Sequence[str]] = field(default_factory=dict)
    max_usd_per_step: float | None = None


class NodeRules:
    """Constraints as a table: which task may use which node.

    Raises
    ------
    SpecError
        For unknown tasks or nodes, all at once.
    """

    def __init__(self, context: SearchContext, constraints: Constraints) -> None:
        tasks = [task.name for task in context.job.workflow.tasks]
        nodes = [node.id for node in context.topology.nodes]
        problems = []

        def check(path: str, what: str, found: str, known: list[str]) -> None:
            if found not in known:
                valid = did_you_mean(found, known) or ", ".join(known[:20])
                problems.append(Problem(path=path, message=f"unknown {what}", found=found, valid=valid))

        for name, rules in (("pin", constraints.pin), ("forbid", constraints.forbid)):
            for task, listed in rules.items():
                check(f"constraints.{name}", "task", task, tasks)
                for node in listed:
                    check(f"constraints.{name}.{task}", "node", node, nodes)
        if problems:
            raise SpecError(problems)
        self.allowed: NDArray[np.bool_] = np.ones((len(tasks), len(nodes)), dtype=np.bool_)
        for task, listed in constraints.pin.items():
            self.allowed[tasks.index(task)] &= np.isin(nodes, list(listed))
        for task, listed in constraints.forbid.items():
            self.allowed[tasks.index(task)] &= ~np.isin(nodes, list(listed))
        self.free = bool(self.allowed.all())

    def admits(self, tasks: tuple[int, ...], counts: bytes) -> bool:
        """Whether a group of tasks may hold these devices."""
        return self.free or not np.frombuffer(counts, dtype=np.int32)[~self.allowed[list(tasks)].all(axis=0)].any()

    def repaired(self, grouping: Grouping, assignment: Assignment) -> Assignment | None:
        """Move devices to groups that may use them; None if a group ends up with nothing.

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
        if (counts.sum(axis=1) == 0).any():
            return None
        return tuple(np.ascontiguousarray(row, dtype=np.int32).tobytes() for row in counts)
