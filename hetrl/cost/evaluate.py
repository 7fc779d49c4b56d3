"""The one readable evaluator: a plan's seconds, memory and schedule.

Planners, the exact solver and the compiled kernels compose the same unit formulas; this module is what they are
tested against.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from hetrl.cost.estimate import Estimate, TaskEstimate
from hetrl.cost.generation import Generation, replica_generation
from hetrl.cost.model import PHASES, CostModel
from hetrl.cost.residency import MemoryUse, plan_memory, task_memory
from hetrl.cost.schedule import Activity, Schedule, asynchronous_period, best_schedule
from hetrl.cost.scoring import replica_scoring_seconds
from hetrl.cost.stages import ReplicaClass, replica_class
from hetrl.cost.training import training_seconds
from hetrl.cost.transfers import Transfer, data_transfer, switch_seconds, weight_sync
from hetrl.cost.unit import UnitCosts
from hetrl.errors import Problem
from hetrl.plan.plan import Plan, TaskPlan
from hetrl.spec.job import Job
from hetrl.spec.workflow import Task
from hetrl.units import format_bytes
from hetrl.workload.flops import forward_flops

SYNC_PREFIX = "sync:"


def evaluate(job: Job, plan: Plan, costs: UnitCosts) -> Estimate:
    """Evaluate a plan.

    Parameters
    ----------
    job
        What is asked for.
    plan
        What to evaluate; it may be infeasible.
    costs
        Unit costs of this job.

    Returns
    -------
    Estimate
        With every violated limit in ``problems``.
    """
    memory = plan_memory(job, plan)
    problems = memory_problems(job, memory) + share_problems(job, plan)
    tasks = {
        each.task: task_estimate(job, job.workflow.task(each.task), each, costs, memory.kv_tokens.get(each.task, ()))
        for each in plan.tasks
    }
    for name, estimate in tasks.items():
        if math.isinf(estimate.seconds):
            problems.append(
                Problem(
                    path=f"tasks.{name}",
                    message="the KV cache has no room for one longest sequence",
                    valid=f"at least {job.batch.max_sequence_tokens} tokens",
                    rule="KV_ROOM",
                )
            )
    transfers = plan_transfers(job, plan, costs.model)
    activities = plan_activities(job, plan, {name: each.seconds for name, each in tasks.items()}, transfers)
    schedule = best_schedule(activities) if not any(math.isinf(each.seconds) for each in tasks.values()) else Schedule()
    if problems:
        step = math.inf
    elif job.staleness > 0:
        step = asynchronous_period(activities, job.staleness)
    else:
        step = schedule.seconds
    return _summary(job, plan, costs, tasks, transfers, schedule, memory, problems, step)


def task_estimate(job: Job, task: Task, plan: TaskPlan, costs: UnitCosts, kv_tokens: tuple[float, ...]) -> TaskEstimate:
    """Seconds of one task with its placement; ``kv_tokens`` per replica for generation."""
    topology, batch = job.topology, job.batch
    switch = switch_seconds(job, task, plan, task_memory(job, task, plan))
    details: dict[str, float] = {}
    communication = 0.0
    if task.kind == "train":
        training = training_seconds(costs, topology, batch, task, plan)
        replicas = tuple(
            each.old_log_prob_seconds + training.num_updates * each.pipeline_seconds for each in training.replicas
        )
        compute, communication = training.compute_seconds, training.communication_seconds
        details = {
            "num_updates": training.num_updates,
            "optimizer_seconds": training.num_updates * training.optimizer_seconds,
        }
    elif task.kind == "score":
        scoring: dict[ReplicaClass, float] = {}
        for replica in plan.replicas:
            key = replica_class(topology, replica)
            if key not in scoring:
                scoring[key] = replica_scoring_seconds(costs, topology, batch, task, plan, replica)
        replicas = tuple(scoring[replica_class(topology, replica)] for replica in plan.replicas)
        compute = max(replicas)
    else:
        known: dict[tuple[ReplicaClass, float], Generation] = {}
        generations = []
        for replica, tokens in zip(plan.replicas, kv_tokens, strict=True):
            pair = (replica_class(topology, replica), tokens)
            if pair not in known:
                known[pair] = replica_generation(costs, topology, batch, task, plan, replica, tokens)
            generations.append(known[pair])
        replicas = tuple(each.seconds for each in generations)
        compute = max(replicas)
        details = {
            "concurrency": min(each.concurrency for each in generations),
            "prefill_seconds": max(each.prefill_seconds for each in generations),
            "num_iterations": max(each.num_iterations for each in generations),
        }
    return TaskEstimate(
        seconds=compute + communication + switch,
        compute_seconds=compute,
        communication_seconds=communication,
        switch_seconds=switch,
        replica_seconds=replicas,
        details=details,
    )


def plan_transfers(job: Job, plan: Plan, model: CostModel) -> tuple[Transfer, ...]:
    """All movements of a step: rollouts and scores along the task graph, then weights to the role's other tasks."""
    workflow = job.workflow
    transfers = [
        data_transfer(
            job,
            workflow.task(need),
            plan.task(need),
            task,
            plan.task(task.name),
            same_devices=plan.task(need).devices == plan.task(task.name).devices,
        )
        for task in workflow.tasks
        for need in task.needs
    ]
    for source in workflow.tasks:
        if source.kind != "train":
            continue
        for target in workflow.tasks:
            if target.role != source.role or target.kind == "train":
                continue
            if plan.task(target.name).residency.weights_when_idle != "shared":
                transfers.append(
                    weight_sync(job, model, source, plan.task(source.name), target, plan.task(target.name))
                )
    return tuple(transfers)


def plan_activities(
    job: Job, plan: Plan, seconds: Mapping[str, float], transfers: tuple[Transfer, ...]
) -> tuple[Activity, ...]:
    """Tasks and weight syncs as activities of the schedule, in topological order."""
    moved = {(each.source, each.target): each for each in transfers}
    activities = [
        Activity(
            name=task.name,
            seconds=seconds[task.name],
            groups=(plan.group_of(task.name),),
            needs=tuple((need, moved[need, task.name].seconds) for need in task.needs),
        )
        for task in job.workflow.tasks
    ]
    activities.extend(
        Activity(
            name=SYNC_PREFIX + each.target,
            seconds=each.seconds,
            groups=tuple(sorted({plan.group_of(each.source), plan.group_of(each.target)})),
            needs=((each.source, 0.0), (each.target, 0.0)),
        )
        for each in transfers
        if each.kind == "weights"
    )
    return tuple(activities)


def memory_problems(job: Job, memory: MemoryUse) -> list[Problem]:
    """Every device interval and host over its limit, with the dominant term."""
    problems = []
    for device, intervals in sorted(memory.devices.items()):
        for interval, terms in intervals.items():
            used = sum(terms.values())
            if used > memory.limits[device]:
                dominant = max(terms, key=lambda term: terms[term])
                problems.append(
                    Problem(
                        path=f"devices[{device}].{interval}",
                        message=f"{format_bytes(used)} needed, {format_bytes(memory.limits[device])} allowed",
                        found=f"largest term: {dominant} {format_bytes(terms[dominant])}",
                        rule="DEVICE_MEMORY",
                    )
                )
    for node, used in memory.hosts.items():
        if used > memory.host_limits[node]:
            problems.append(
                Problem(
                    path=f"nodes[{job.topology.nodes[node].id}].host_ram",
                    message=f"{format_bytes(used)} needed, {format_bytes(memory.host_limits[node])} present",
                    rule="HOST_RAM",
                )
            )
    return problems


def share_problems(job: Job, plan: Plan) -> list[Problem]:
    """Tasks whose replicas do not handle exactly the prompts of a step, or not all layers of the model."""
    problems = []
    for each in plan.tasks:
        task = job.workflow.task(each.task)
        if each.num_prompts != job.batch.num_prompts:
            problems.append(
                Problem(
                    path=f"tasks.{each.task}.replicas",
                    message="shares do not add up to the prompts of a step",
                    found=str(each.num_prompts),
                    valid=str(job.batch.num_prompts),
                    rule="BATCH_SPLIT",
                )
            )
        for number, replica in enumerate(each.replicas):
            layers = sum(stage.num_layers for stage in replica.stages)
            if layers != task.model.num_layers:
                problems.append(
                    Problem(
                        path=f"tasks.{each.task}.replicas[{number}].stages",
                        message="stages do not add up to the model's layers",
                        found=str(layers),
                        valid=str(task.model.num_layers),
                        rule="PP_SPLIT",
                    )
                )
        if task.kind == "train":
            layouts = {
                tuple((stage.num_layers, len(stage.devices)) for stage in replica.stages) for replica in each.replicas
            }
            if len(layouts) > 1:
                problems.append(
                    Problem(
                        path=f"tasks.{each.task}.replicas",
                        message="replicas of a training task need the same layers and tensor degree per stage",
                        found=str(sorted(layouts)),
                        rule="TRAIN_LAYOUT",
                    )
                )
    return problems


def step_flops(job: Job) -> float:
    """FLOPs of one step that advance the models: decoding and prefill, scoring, forward and backward (no recompute)."""
    batch = job.batch
    total = 0.0
    for task in job.workflow.tasks:
        sequences = batch.num_prompts * task.sequences_per_prompt
        if task.kind == "generate":
            total += forward_flops(task.model, num_sequences=batch.num_prompts, new_tokens=batch.prompt_tokens)
            total += forward_flops(
                task.model,
                num_sequences=sequences * batch.mean_response_tokens,
                new_tokens=1,
                cached_tokens=batch.prompt_tokens + batch.mean_response_tokens / 2,
            )
        else:
            passes = 3.0 * batch.num_epochs if task.kind == "train" else 1.0
            total += passes * forward_flops(task.model, num_sequences=sequences, new_tokens=batch.mean_sequence_tokens)
    return total


def _summary(
    job: Job,
    plan: Plan,
    costs: UnitCosts,
    tasks: Mapping[str, TaskEstimate],
    transfers: tuple[Transfer, ...],
    schedule: Schedule,
    memory: MemoryUse,
    problems: list[Problem],
    step: float,
) -> Estimate:
    topology, batch = job.topology, job.batch
    sequences = batch.num_prompts * max(task.sequences_per_prompt for task in job.workflow.tasks)
    used = {device for each in plan.tasks for device in each.devices}
    busy = dict.fromkeys(range(topology.num_devices), 0.0)
    for each in plan.tasks:
        for replica, seconds in zip(each.replicas, tasks[each.task].replica_seconds, strict=True):
            for device in replica.devices:
                busy[device] += seconds
    hourly = usd_per_hour(job, used)
    usd = hourly * step / 3600 if hourly is not None and math.isfinite(step) else None
    peak = sum(
        topology.devices[device].type.flops_per_second.get(
            job.precision.dtype, max(topology.devices[device].type.flops_per_second.values())
        )
        for device in used
    )
    finite = math.isfinite(step) and step > 0
    tokens = sequences * batch.mean_sequence_tokens
    return Estimate(
        step_seconds=step,
        tasks=tasks,
        transfers=transfers,
        schedule=schedule,
        memory=memory,
        problems=tuple(problems),
        tokens_per_second=tokens / step if finite else 0.0,
        samples_per_second=sequences / step if finite else 0.0,
        usd_per_step=usd,
        usd_per_million_tokens=usd / tokens * 1e6 if usd is not None else None,
        model_flops_utilisation=step_flops(job) / (peak * step) if finite else 0.0,
        idle_share={device: max(0.0, 1.0 - seconds / step) if finite else 0.0 for device, seconds in busy.items()},
        provenance=provenance(job, plan, costs.model),
    )


def usd_per_hour(job: Job, devices: set[int]) -> float | None:
    """Price of the devices used, each its part of its node's price; None if any of the prices is unknown."""
    total = 0.0
    for device in devices:
        node = job.topology.nodes[job.topology.devices[device].node]
        if node.usd_per_hour is None:
            return None
        total += node.usd_per_hour / node.num_devices
    return total


def provenance(job: Job, plan: Plan, model: CostModel) -> dict[str, str]:
    """Where the plan's figures come from: per device type in use, its operators and phase calibrations; links."""
    used = {device for each in plan.tasks for device in each.devices}
    nodes = sorted({job.topology.devices[device].node for device in used})
    between = {link.kind for link in job.topology.links_between(nodes, nodes)}
    figures = {"links": "measured" if between == {"measured"} else "datasheet"}
    kinds = {job.topology.devices[device].type.name: job.topology.devices[device].type for device in sorted(used)}
    inside = {
        node.device_type.name: node.intra_link.collectives
        for node in (job.topology.nodes[index] for index in nodes)
        if node.num_devices > 1
    }
    for name, collectives in inside.items():
        figures[f"{name}.collectives"] = "datasheet" if collectives is None else collectives.provenance
    for name, kind in kinds.items():
        figures[f"{name}.host_link"] = "measured" if name in model.host_links else "datasheet"
        for operator in ("gemm", "attention_prefill", "attention_decode", "memory"):
            figures[f"{name}.{operator}"] = model.operator(kind, operator, job.precision.dtype).provenance
        for phase in PHASES:
            figures[f"{name}.{phase}"] = model.calibration(name, phase).provenance
    return figures
