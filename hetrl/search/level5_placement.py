"""Level 5: device ids. Groups take consecutive devices of each node; shares are rebalanced exactly.

Tensor groups already sit inside nodes, pipelines chain neighbouring groups, and gradient rings visit nodes in order,
so that every ring leaves a node once. What is left is to name the devices and to fit the shares to the final layout.
"""

from __future__ import annotations

from dataclasses import replace

from hetrl.cost.generation import replica_generation
from hetrl.cost.residency import plan_memory
from hetrl.cost.scoring import replica_scoring_seconds
from hetrl.cost.stages import replica_class
from hetrl.cost.training import replica_training
from hetrl.plan.plan import Group, Plan, Replica, Stage, TaskPlan
from hetrl.search.context import SearchContext
from hetrl.search.level3_colocation import GroupChoice
from hetrl.search.level4_assignment import Assignment, Grouping
from hetrl.search.shares import exact_shares
from hetrl.spec.job import Job


def place(context: SearchContext, grouping: Grouping, assignment: Assignment, choices: list[GroupChoice]) -> Plan:
    """Turn group choices on canonical devices into a plan on real, disjoint devices."""
    topology = context.topology
    taken = [0] * len(context.nodes)
    groups, tasks = [], []
    for names, counts, choice in zip(grouping, assignment, choices, strict=True):
        offset = tuple(taken)
        devices = tuple(
            topology.devices_of(node)[offset[node] + index] for node in context.nodes for index in range(counts[node])
        )
        groups.append(Group(tasks=names, devices=devices))
        tasks.extend(_moved(context, plan, offset) for plan in choice.plans)
        taken = [start + count for start, count in zip(taken, counts, strict=True)]
    order = {task.name: number for number, task in enumerate(context.job.workflow.tasks)}
    return Plan(groups=tuple(groups), tasks=tuple(sorted(tasks, key=lambda plan: order[plan.task])))


def _moved(context: SearchContext, plan: TaskPlan, offset: tuple[int, ...]) -> TaskPlan:
    def device(canonical: int) -> int:
        return canonical + offset[context.topology.devices[canonical].node]

    return replace(
        plan,
        replicas=tuple(
            Replica(
                num_prompts=replica.num_prompts,
                stages=tuple(
                    Stage(num_layers=stage.num_layers, devices=tuple(device(each) for each in stage.devices))
                    for stage in replica.stages
                ),
            )
            for replica in plan.replicas
        ),
    )


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
