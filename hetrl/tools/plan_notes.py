"""Sentences about a plan: what is offloaded or dropped, how much, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hetrl.cost.residency import RankMemory, device_limit, task_memory
from hetrl.plan.plan import Group, Plan, Residency, TaskPlan
from hetrl.spec.job import Job
from hetrl.spec.workflow import Task
from hetrl.units import format_bytes


def offload_notes(job: Job, plan: Plan) -> tuple[str, ...]:
    """Per group the shortage that asks for it, then one note per task whose state leaves its devices."""
    notes = []
    for group in plan.groups:
        moved = [(name, _moved(job, job.workflow.task(name), plan.task(name))) for name in group.tasks]
        if any(what for _, what in moved):
            notes.append(_reason(job, plan, group))
            notes.extend(f"{name}: {what}" for name, what in moved if what)
    return tuple(notes)


def _moved(job: Job, task: Task, plan: TaskPlan) -> str:
    memory = task_memory(job, task, plan)
    optimizer = plan.residency.optimizer_states
    parts = []
    if optimizer == "host":
        host = sum(rank.host for rank in memory.values())
        parts.append(
            f"optimizer states live in host RAM ({format_bytes(host)} with buffers), where the optimizer steps"
        )
    elif optimizer == "host_when_idle":
        moved = sum(rank.active["optimizer"] for rank in memory.values())
        parts.append(f"optimizer states ({format_bytes(moved)}) are in host RAM outside its interval")
    weights = plan.residency.weights_when_idle
    held = sum(rank.active["weights"] for rank in memory.values())
    if weights == "host":
        parts.append(f"weights ({format_bytes(held)}) are in host RAM outside its interval")
    elif weights == "dropped":
        parts.append(
            f"engine weights ({format_bytes(held)}) and KV cache are freed while other tasks run; "
            "the weight sync brings them back"
        )
    return " and ".join(parts)


def _reason(job: Job, plan: Plan, group: Group) -> str:
    """Describe the fullest device of the group if every task of it kept everything on its devices."""
    needed: dict[int, float] = dict.fromkeys(group.devices, 0.0)
    for name in group.tasks:
        memory: Mapping[int, RankMemory] = task_memory(job, job.workflow.task(name), _all_resident(plan.task(name)))
        for device, rank in memory.items():
            needed[device] += rank.active_bytes
    fullest = max(needed, key=lambda device: needed[device] / device_limit(job, device))
    limit = device_limit(job, fullest)
    names = ", ".join(group.tasks)
    if needed[fullest] > limit:
        together = format_bytes(needed[fullest])
        return f"{names} would together need {together} on device {fullest}, which allows {format_bytes(limit)}; so"
    return f"{names}: the room on device {fullest} ({format_bytes(limit)}) serves a larger KV cache better; so"


def _all_resident(plan: TaskPlan) -> TaskPlan:
    shared = plan.residency.weights_when_idle == "shared"
    return replace(plan, residency=Residency(weights_when_idle="shared" if shared else "resident"))
