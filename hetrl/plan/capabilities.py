"""What the runtime of this version can carry out. The planner marks a plan that asks for more; the launcher refuses.

One table serves the planner, `hetrl-launch` and the documentation. Each row names a feature, whether the runtime has
it, and how a plan is recognised as asking for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hetrl.errors import Problem
from hetrl.plan.plan import Plan, TaskPlan
from hetrl.spec.workflow import Workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One feature of plans.

    Parameters
    ----------
    name
        What it is, as it appears in ``NotSupported: <name>``.
    supported
        Whether the runtime carries it out.
    asked_by
        (task kind, task plan) -> whether the plan asks for it.
    """

    name: str
    supported: bool
    asked_by: Callable[[str, TaskPlan], bool]


def _pipeline(task: TaskPlan) -> bool:
    return any(len(replica.stages) > 1 for replica in task.replicas)


def _tensor(task: TaskPlan) -> bool:
    return any(len(stage.devices) > 1 for replica in task.replicas for stage in replica.stages)


CAPABILITIES: tuple[Capability, ...] = (
    Capability(
        name="several replicas with uneven shares", supported=True, asked_by=lambda kind, task: len(task.replicas) > 1
    ),
    Capability(
        name="pipeline stages > 1 in training",
        supported=False,
        asked_by=lambda kind, task: kind == "train" and _pipeline(task),
    ),
    Capability(
        name="pipeline stages > 1 in scoring",
        supported=False,
        asked_by=lambda kind, task: kind == "score" and _pipeline(task),
    ),
    Capability(
        name="pipeline stages > 1 in generation",
        supported=False,
        asked_by=lambda kind, task: kind == "generate" and _pipeline(task),
    ),
    Capability(
        name="tensor parallel > 1 in training",
        supported=False,
        asked_by=lambda kind, task: kind == "train" and _tensor(task),
    ),
    Capability(
        name="tensor parallel > 1 in scoring",
        supported=False,
        asked_by=lambda kind, task: kind == "score" and _tensor(task),
    ),
    Capability(
        name="tensor parallel > 1 in generation",
        supported=False,
        asked_by=lambda kind, task: kind == "generate" and _tensor(task),
    ),
    Capability(
        name="optimizer-state sharding (ZeRO-1)", supported=False, asked_by=lambda kind, task: task.sharding == "zero1"
    ),
    Capability(
        name="fully sharded training (FSDP)", supported=False, asked_by=lambda kind, task: task.sharding == "fsdp"
    ),
    Capability(name="activation recomputation", supported=False, asked_by=lambda kind, task: task.recompute),
    Capability(
        name="optimizer states in host RAM",
        supported=False,
        asked_by=lambda kind, task: task.residency.optimizer_states != "device",
    ),
    Capability(
        name="weights in host RAM while idle",
        supported=False,
        asked_by=lambda kind, task: task.residency.weights_when_idle == "host",
    ),
    Capability(
        name="engine weights dropped while idle",
        supported=False,
        asked_by=lambda kind, task: task.residency.weights_when_idle == "dropped",
    ),
)

ALGORITHMS_RUN = ("GRPO",)


def unsupported(workflow: Workflow, plan: Plan) -> list[Problem]:
    """Everything the plan asks for that the runtime cannot carry out; empty if it can be launched."""
    problems = []
    if workflow.algorithm not in ALGORITHMS_RUN:
        problems.append(
            Problem(
                path="workflow.algorithm",
                message=f"NotSupported: running {workflow.algorithm}",
                valid=f"the runtime carries out {', '.join(ALGORITHMS_RUN)}; every algorithm can be planned",
                rule="CAPABILITY",
            )
        )
    if any(task.kind == "score" and task.role != "reference" for task in workflow.tasks):
        problems.append(
            Problem(
                path="workflow.reward_model",
                message="NotSupported: reward and critic models in the runtime",
                valid="a reward function (run.reward)",
                rule="CAPABILITY",
            )
        )
    for task in plan.tasks:
        kind = workflow.task(task.task).kind
        problems.extend(
            Problem(path=f"tasks.{task.task}", message=f"NotSupported: {capability.name}", rule="CAPABILITY")
            for capability in CAPABILITIES
            if not capability.supported and capability.asked_by(kind, task)
        )
    return problems
