"""Necessary conditions on memory, before anything is searched: what no plan of any kind can avoid."""

from __future__ import annotations

from hetrl.errors import Problem
from hetrl.spec.job import Job
from hetrl.units import format_bytes
from hetrl.workload.flops import lora_parameters
from hetrl.workload.memory import train_state_bytes_per_parameter


def fleet_outlook(job: Job) -> list[Problem]:
    """Return the necessary conditions that a job violates; empty does not mean that it fits.

    Every phase needs its model's weights on the devices, training its gradients too; all training state must fit
    into device and host memory together.

    Rules: DEVICE_MEMORY, HOST_RAM.
    """
    margin = 1.0 - job.optimizer.memory_safety_margin
    usable = margin * sum(node.num_devices * node.device_type.memory_bytes for node in job.topology.nodes)
    host = sum(node.host_ram_bytes for node in job.topology.nodes if node.device_type.vendor != "cpu")
    each = train_state_bytes_per_parameter(job.precision)
    problems = []
    trained_state = 0.0
    for task in job.workflow.tasks:
        parameters = task.model.num_parameters
        trained = lora_parameters(task.model, job.precision.lora_rank) if job.precision.lora_rank else parameters
        least = float(parameters * each.weights)
        if task.kind == "train":
            least += trained * each.gradients
            trained_state += parameters * each.weights + trained * (each.gradients + each.optimizer)
        if least > usable:
            message = f"{task.name} needs at least {format_bytes(least)} on the devices, the whole fleet has "
            message += f"{format_bytes(usable)} after the margin"
            problems.append(
                Problem(
                    path=f"workflow.{task.role}_model",
                    message=message,
                    found=task.model.name,
                    valid=_remedy(job, least, usable, lora=parameters * each.weights <= usable),
                    rule="DEVICE_MEMORY",
                )
            )
    if not problems and trained_state > usable + host:
        message = f"training states of {format_bytes(trained_state)} exceed device and host memory together "
        message += f"({format_bytes(usable + host)})"
        problems.append(
            Problem(
                path="cluster_topology.nodes",
                message=message,
                valid=_remedy(job, trained_state, usable + host, lora=True),
                rule="HOST_RAM",
            )
        )
    return problems


def _remedy(job: Job, needed: float, there: float, *, lora: bool) -> str:
    largest = max(job.topology.device_types, key=lambda device: device.memory_bytes)
    per_device = largest.memory_bytes * (1.0 - job.optimizer.memory_safety_margin)
    count = -(-(needed - there) // per_device)
    text = f"at least {count:.0f} more {largest.name}"
    return f"{text}, or precision.lora_rank" if lora and not job.precision.lora_rank else text
