"""The one table of what the runtime carries out: the planner's marks and the launcher's refusals agree."""

from __future__ import annotations

import pytest

from hetrl.plan.capabilities import unsupported
from hetrl.plan.plan import Group, Plan, Replica, Stage, TaskPlan
from hetrl.runtime.limits import launch_problems
from hetrl.spec.job import RunSettings
from tests.helpers.jobs import two_nodes

PRECISIONS = {
    "precision.dtype": {"dtype": "bf16"},
    "precision.gradient_dtype": {"dtype": "fp32", "gradient_dtype": "bf16"},
    "precision.kv_cache_dtype": {"dtype": "fp32", "kv_cache_dtype": "bf16"},
    "precision.optimizer": {"dtype": "fp32", "optimizer": "sgd"},
    "precision.lora_rank": {"dtype": "fp32", "lora_rank": 8},
}


def plan_of_one_device(tasks: tuple[str, ...]) -> Plan:
    """Every task on device 0, whole."""
    replica = Replica(stages=(Stage(num_layers=28, devices=(0,)),), num_prompts=64)
    return Plan(
        groups=(Group(tasks=tasks, devices=(0,)),),
        tasks=tuple(TaskPlan(task=task, replicas=(replica,), micro_batch_size=1) for task in tasks),
    )


@pytest.mark.parametrize(("path", "precision"), PRECISIONS.items())
def test_each_precision_that_the_runtime_lacks_is_named_by_its_key(path: str, precision: dict[str, object]) -> None:
    job = two_nodes({"precision": precision})
    plan = plan_of_one_device(tuple(task.name for task in job.workflow.tasks))
    found = {problem.path for problem in unsupported(job, plan) if problem.path.startswith("precision")}
    assert found == {path}


def test_the_launcher_refuses_exactly_what_the_plan_is_marked_with() -> None:
    job = two_nodes({"workflow.staleness": 1})
    plan = plan_of_one_device(tuple(task.name for task in job.workflow.tasks))
    marked = unsupported(job, plan)
    refused = [each for each in launch_problems(plan, job, RunSettings()) if each.rule == "CAPABILITY"]
    assert refused == marked
    assert {"workflow.staleness", "cluster_topology", "precision.dtype"} == {each.path for each in marked}
    assert sum(each.path == "cluster_topology" for each in marked) == 2  # H100 and L40S
