"""A plan: groups and strategies (rho), and every tasklet's device (sigma).

Tasklet (t, i, j, k) is task t, replica i, stage j, shard k; its device is
``plan.task(t).replicas[i].stages[j].devices[k]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hetrl.errors import Problem, SpecError

SHARDINGS = ("none", "zero1", "fsdp")
WEIGHTS_WHEN_IDLE = ("resident", "host", "dropped", "shared")
OPTIMIZER_STATES = ("device", "host_when_idle", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage of one replica: its number of layers and its tensor-parallel devices in rank order."""

    num_layers: int
    devices: tuple[int, ...]

    @property
    def tensor_parallel(self) -> int:
        """Tensor degree of the stage."""
        return len(self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One copy of a task's model: its stages, and the number of prompts it handles per step."""

    stages: tuple[Stage, ...]
    num_prompts: int

    @property
    def devices(self) -> tuple[int, ...]:
        """All devices, stage by stage."""
        return tuple(device for stage in self.stages for device in stage.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """Where a task keeps its state.

    Parameters
    ----------
    weights_when_idle
        ``resident`` on the device; ``host``: in host RAM, reloaded before use; ``dropped``: freed, and fetched again
        by the weight sync (generation engines); ``shared``: the weights are those of the role's train task.
    optimizer_states
        Train tasks only. ``device``; ``host_when_idle``: moved to host RAM outside the task's interval, together
        with weights if those are not resident; ``host``: kept in host RAM, the optimizer step runs there.
    """

    weights_when_idle: str = "resident"
    optimizer_states: str = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """How and where one task runs.

    Parameters
    ----------
    task
        Name of the workflow's task.
    replicas
        Placement and batch share of every replica.
    micro_batch_size
        Sequences per micro-batch (train and score); for generation the engine's limit of concurrent sequences.
    recompute
        Full activation recomputation (train only).
    sharding
        Optimizer-state sharding over the replicas (train only), one of `SHARDINGS`.
    """

    task: str
    replicas: tuple[Replica, ...]
    micro_batch_size: int
    recompute: bool = False
    sharding: str = "none"
    residency: Residency = Residency()

    @property
    def devices(self) -> tuple[int, ...]:
        """All devices used, sorted."""
        return tuple(sorted({device for replica in self.replicas for device in replica.devices}))

    @property
    def num_prompts(self) -> int:
        """Prompts of all replicas together."""
        return sum(replica.num_prompts for replica in self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tasks that share devices; groups are disjoint."""

    tasks: tuple[str, ...]
    devices: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Groups and task plans of a whole job, without predictions (those are an `Estimate`)."""

    groups: tuple[Group, ...]
    tasks: tuple[TaskPlan, ...]
    _by_name: Mapping[str, TaskPlan] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {task.task: task for task in self.tasks}
        object.__setattr__(self, "_by_name", by_name)
        problems = []
        owner: dict[int, int] = {}
        grouped: dict[str, int] = {}
        for number, group in enumerate(self.groups):
            for device in group.devices:
                if device in owner:
                    problems.append(
                        Problem(
                            path=f"groups[{number}].devices",
                            message="device is in two groups",
                            found=str(device),
                            rule="GROUPS",
                        )
                    )
                owner[device] = number
            for name in group.tasks:
                if name in grouped:
                    problems.append(
                        Problem(
                            path=f"groups[{number}].tasks", message="task is in two groups", found=name, rule="GROUPS"
                        )
                    )
                grouped[name] = number
        if set(grouped) != set(by_name) or len(by_name) != len(self.tasks):
            problems.append(
                Problem(
                    path="tasks",
                    message="groups and task plans do not name the same tasks",
                    found=f"{sorted(grouped)} and {sorted(task.task for task in self.tasks)}",
                    rule="GROUPS",
                )
            )
        for task in self.tasks:
            problems.extend(_task_problems(task, owner, grouped))
        if problems:
            raise SpecError(problems)

    def task(self, name: str) -> TaskPlan:
        """Return the plan of one task."""
        return self._by_name[name]

    def group_of(self, task: str) -> int:
        """Index of the group a task belongs to."""
        return next(number for number, group in enumerate(self.groups) if task in group.tasks)


def _task_problems(task: TaskPlan, owner: Mapping[int, int], grouped: Mapping[str, int]) -> list[Problem]:
    path = f"tasks.{task.task}"
    problems = []

    def problem(where: str, message: str, found: object, valid: str = "") -> None:
        problems.append(Problem(path=f"{path}{where}", message=message, found=str(found), valid=valid, rule="PLAN"))

    if task.sharding not in SHARDINGS:
        problem(".sharding", "unknown sharding", task.sharding, ", ".join(SHARDINGS))
    if task.residency.weights_when_idle not in WEIGHTS_WHEN_IDLE:
        problem(
            ".residency.weights_when_idle",
            "unknown residency",
            task.residency.weights_when_idle,
            ", ".join(WEIGHTS_WHEN_IDLE),
        )
    if task.residency.optimizer_states not in OPTIMIZER_STATES:
        problem(
            ".residency.optimizer_states",
            "unknown residency",
            task.residency.optimizer_states,
            ", ".join(OPTIMIZER_STATES),
        )
    if task.micro_batch_size < 1:
        problem(".micro_batch_size", "must be at least 1", task.micro_batch_size)
    if not task.replicas:
        problem(".replicas", "a task needs at least one replica", "none")
    used: set[int] = set()
    for i, replica in enumerate(task.replicas):
        if replica.num_prompts < 0:
            problem(f".replicas[{i}].num_prompts", "must not be negative", replica.num_prompts)
        if not replica.stages:
            problem(f".replicas[{i}].stages", "a replica needs at least one stage", "none")
        for j, stage in enumerate(replica.stages):
            where = f".replicas[{i}].stages[{j}]"
            if stage.num_layers < 1:
                problem(f"{where}.num_layers", "a stage needs at least one layer", stage.num_layers)
            if not stage.devices:
                problem(f"{where}.devices", "a stage needs at least one device", "none")
            for device in stage.devices:
                if device in used:
                    problem(f"{where}.devices", "two tasklets of one task on the same device", device)
                used.add(device)
                if owner.get(device, -1) != grouped.get(task.task, -2):
                    problem(f"{where}.devices", "device does not belong to the task's group", device)
    return problems
