"""What the runtime of this version can carry out. The planner marks a plan that asks for more; the launcher refuses.

One table serves the planner, `hetrl-launch` and the documentation. Each row names a feature, whether the runtime has
it, and how a plan is recognised as asking for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hetrl.errors import Problem
from hetrl.plan.plan import Plan, TaskPlan
from hetrl.spec.job import Job


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
DTYPES_RUN = ("fp32",)
VENDORS_RUN = ("cpu",)


def unsupported(job: Job, plan: Plan) -> list[Problem]:
    """Everything that the job and its plan ask for that the runtime cannot carry out; empty if it can be launched."""
    return unsupported_job(job) + unsupported_tasks(job, plan)


def unsupported_tasks(job: Job, plan: Plan) -> list[Problem]:
    """Return what the plan asks for that the runtime cannot carry out, whatever the job."""
    problems: list[Problem] = []
    for task in plan.tasks:
        kind = job.workflow.task(task.task).kind
        problems.extend(
            Problem(path=f"tasks.{task.task}", message=f"NotSupported: {capability.name}", rule="CAPABILITY")
            for capability in CAPABILITIES
            if not capability.supported and capability.asked_by(kind, task)
        )
    return problems


def unsupported_job(job: Job) -> list[Problem]:
    """Return what the job asks for that the runtime cannot carry out, whatever the plan."""
    workflow, precision = job.workflow, job.precision
    vendors = {each.name: each.vendor for each in job.topology.device_types}
    asked = [
        (
            workflow.algorithm not in ALGORITHMS_RUN,
            "workflow.algorithm",
            f"running {workflow.algorithm}",
            f"the runtime carries out {', '.join(ALGORITHMS_RUN)}; every algorithm can be planned",
        ),
        (
            any(task.kind == "score" and task.role != "reference" for task in workflow.tasks),
            "workflow.reward_model",
            "reward and critic models in the runtime",
            "a reward function (run.reward)",
        ),
        (
            precision.dtype not in DTYPES_RUN,
            "precision.dtype",
            f"training in {precision.dtype}",
            ", ".join(DTYPES_RUN),
        ),
        (
            precision.gradient_dtype != precision.dtype,
            "precision.gradient_dtype",
            f"gradients in {precision.gradient_dtype} beside weights in {precision.dtype}",
            precision.dtype,
        ),
        (
            precision.kv_cache_dtype != precision.dtype,
            "precision.kv_cache_dtype",
            f"a KV cache in {precision.kv_cache_dtype} beside weights in {precision.dtype}",
            precision.dtype,
        ),
        (precision.lora_rank > 0, "precision.lora_rank", "LoRA in training", "0"),
        (precision.optimizer != "adamw", "precision.optimizer", f"optimizer {precision.optimizer}", "adamw"),
        (job.staleness > 0, "workflow.staleness", "asynchronous steps (staleness > 0)", "0"),
        *(
            (vendor not in VENDORS_RUN, "cluster_topology", f"workers on {name} devices", "CPU devices")
            for name, vendor in vendors.items()
        ),
    ]
    return [
        Problem(path=path, message=f"NotSupported: {what}", valid=valid, rule="CAPABILITY")
        for is_asked, path, what, valid in asked
        if is_asked
    ]
