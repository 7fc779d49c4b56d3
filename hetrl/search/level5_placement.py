"""Level 5: device ids. Groups take consecutive devices of each node; shares are rebalanced exactly.

Tensor groups already sit inside nodes, pipelines chain neighbouring groups, and gradient rings visit nodes in order,
so that every ring leaves a node once. What is left is to name the devices and to fit the shares to the final layout.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hetrl.cost.generation import replica_generation
from hetrl.cost.residency import plan_memory
from hetrl.cost.scoring import replica_scoring_seconds
from hetrl.cost.stages import replica_class
from hetrl.cost.training import replica_training
from hetrl.plan.plan import Group, Plan, TaskPlan
from hetrl.search.context import Candidate, SearchContext
from hetrl.search.level3_colocation import task_plan
from hetrl.search.shares import exact_shares
from hetrl.spec.job import Job


def place(context: SearchContext, candidate: Candidate) -> Plan:
    """Turn a feasible candidate into a plan on real, disjoint devices."""
    topology = context.topology
    names = [task.name for task in context.job.workflow.tasks]
    taken = [0] * len(context.nodes)
    groups: list[Group] = []
    tasks: list[TaskPlan] = []
    for members, key in zip(candidate.grouping, candidate.assignment, strict=True):
        counts = np.frombuffer(key, dtype=np.int32).tolist()
        devices = tuple(
            topology.first_device[node] + taken[node] + index for node in context.nodes for index in range(counts[node])
        )
        groups.append(Group(tasks=tuple(names[task] for task in members), devices=devices))
        choice = context.steps.group(members, key)
        assert choice is not None  # the candidate is feasible
        tasks.extend(task_plan(context, option, taken) for option in choice.options)
        taken = [start + count for start, count in zip(taken, counts, strict=True)]
    return Plan(groups=tuple(groups), tasks=tuple(sorted(tasks, key=lambda plan: names.index(plan.task))))


def rebalance(context: SearchContext, plan: Plan) -> Plan:
    """Give every task's replicas the shares that minimise its slowest replica, exactly."""
    return replace_tasks(plan, {task.task: _rebalanced(context, plan, task) for task in plan.tasks})


def replace_tasks(plan: Plan, tasks: dict[str, TaskPlan]) -> Plan:
    """Plan with some task plans replaced."""
    return Plan(groups=plan.groups, tasks=tuple(tasks.get(task.task, task) for task in plan.tasks))


def _rebalanced(context: SearchContext, plan: Plan, task_plan: TaskPlan) -> TaskPlan:
    job: Job = context.job
    task = job.workflow.task(task_plan.task)
    if len(task_plan.replicas) == 1:
        return task_plan
    classes = [replica_class(job.topology, replace(replica, num_prompts=0)) for replica in task_plan.replicas]
    if len(set(classes)) == 1:
        return task_plan
    kv_tokens = plan_memory(job, plan).kv_tokens.get(task_plan.task, ())

    def seconds(index: int, prompts: int) -> float:
        replica = replace(task_plan.replicas[index], num_prompts=prompts)
        if task.kind == "train":
            cost = replica_training(context.costs, job.topology, job.batch, task, task_plan, replica)
            return cost.old_log_prob_seconds + job.batch.num_epochs * job.batch.num_mini_batches * cost.pipeline_seconds
        if task.kind == "score":
            return replica_scoring_seconds(context.costs, job.topology, job.batch, task, task_plan, replica)
        return replica_generation(
            context.costs, job.topology, job.batch, task, task_plan, replica, kv_tokens[index]
        ).seconds

    shares = exact_shares(job.batch.num_prompts, classes, seconds)
    if not shares:
        return task_plan
    return replace(
        task_plan,
        replicas=tuple(
            replace(replica, num_prompts=share) for replica, share in zip(task_plan.replicas, shares, strict=True)
        ),
    )
