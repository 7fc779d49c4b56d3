"""Every hard rule over a whole plan: model splits, device groups, dtypes and batch shares, all violations at once."""

from __future__ import annotations

from hetrl.errors import Problem
from hetrl.plan.plan import Plan, TaskPlan
from hetrl.spec import fleet_rules, rules
from hetrl.spec.job import Job
from hetrl.spec.workflow import Task


def plan_problems(job: Job, plan: Plan) -> list[Problem]:
    """Return every hard rule that a plan violates; empty if it is allowed. Memory is checked elsewhere.

    Rules: those of `hetrl.spec.rules` and `hetrl.spec.fleet_rules`, and PLAN_TASKS.
    """
    named = {task.task for task in plan.tasks}
    wanted = {task.name for task in job.workflow.tasks}
    if named != wanted:
        found = f"{', '.join(sorted(named))}"
        return [
            Problem(
                path="tasks",
                message="not the tasks of the workflow",
                found=found,
                valid=", ".join(sorted(wanted)),
                rule="PLAN_TASKS",
            )
        ]
    problems: list[Problem] = []
    for task_plan in plan.tasks:
        problems.extend(task_problems(job, job.workflow.task(task_plan.task), task_plan))
    return problems


def task_problems(job: Job, task: Task, plan: TaskPlan) -> list[Problem]:
    """Return every hard rule that one task's plan violates."""
    path = f"tasks.{task.name}"
    together = [plan.devices] if task.kind == "train" else [replica.devices for replica in plan.replicas]
    problems = [  # replicas that train reduce their gradients together; others never meet in a collective
        problem
        for devices in together
        for problem in fleet_rules.collective_problems(job.topology, devices, path=f"{path}.devices")
    ]
    if problems:  # ids that do not exist, or several vendors: nothing below can be asked
        return problems
    seen: set[tuple[str, str]] = set()

    def add(found: list[Problem]) -> None:
        for problem in found:
            if (problem.rule, problem.message) not in seen:
                seen.add((problem.rule, problem.message))
                problems.append(problem)

    for number, replica in enumerate(plan.replicas):
        where = f"{path}.replicas[{number}]"
        add(rules.pipeline_problems(task.model.num_layers, [stage.num_layers for stage in replica.stages], path=where))
        for stage_number, stage in enumerate(replica.stages):
            place = f"{where}.stages[{stage_number}]"
            add(
                rules.tensor_parallel_problems(
                    task.model, stage.tensor_parallel, num_devices=stage.tensor_parallel, path=place
                )
            )
            add(fleet_rules.tensor_group_problems(job.topology, stage.devices, path=place))
    types = {job.topology.devices[device].type.name: job.topology.devices[device].type for device in plan.devices}
    for device in types.values():
        add(fleet_rules.running_problems(device, task.kind, job.precision, path=path))
    if plan.num_prompts != job.batch.num_prompts:
        add(
            [
                Problem(
                    path=f"{path}.replicas",
                    message=f"shares add up to {plan.num_prompts} prompts",
                    found=str(plan.num_prompts),
                    valid=str(job.batch.num_prompts),
                    rule="BATCH_SPLIT",
                )
            ]
        )
    return problems
