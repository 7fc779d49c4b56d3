"""Constraints: obeyed by every plan, named with their path where wrong, and named as the reason where nothing fits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel
from hetrl.cost.unit import UnitCosts
from hetrl.errors import InfeasibleError, SpecError
from hetrl.plan.plan import Plan, Replica, Stage, TaskPlan
from hetrl.search.constraints import NodeRules
from hetrl.search.context import Candidate, SearchContext
from hetrl.search.hybrid import solve
from hetrl.search.level5_placement import place
from hetrl.search.result import SearchResult
from hetrl.spec.job import Constraints, Job
from hetrl.spec.presets import benchmark_instance

GUIDE_C = "guideC/Llama-3-8B/PPO"


def job_of(name: str = GUIDE_C, budget: int = 300, **constraints: object) -> Job:
    return benchmark_instance(name, {"optimizer.budget": budget, "optimizer.constraints": constraints or None})


def search(job: Job, warm_start: Plan | None = None, **more: int) -> SearchResult:
    return solve(job, UnitCosts(CostModel.builtin(), job.precision), warm_start=warm_start, **more)


def nodes_of(job: Job, plan: Plan, task: str) -> set[str]:
    return {job.topology.nodes[job.topology.devices[device].node].id for device in plan.task(task).devices}


def stages_of(plan: TaskPlan) -> list[list[tuple[int, tuple[int, ...]]]]:
    return [[(stage.num_layers, stage.devices) for stage in replica.stages] for replica in plan.replicas]


@pytest.mark.parametrize("threads", [1, 2])
def test_pinned_and_forbidden_nodes_are_obeyed(threads: int) -> None:
    first, second = (node.id for node in job_of().topology.nodes)
    job = job_of(pin={"actor_train": first}, forbid={"actor_generate": [first]})
    plan = search(job, threads=threads).plan
    assert nodes_of(job, plan, "actor_train") == {first}
    assert nodes_of(job, plan, "actor_generate") == {second}


def test_kept_layouts_stay_on_their_devices_while_the_rest_is_planned_anew() -> None:
    first = job_of().topology.nodes[0].id
    job = job_of(pin={"actor_train": first, "actor_generate": first})
    before = search(job).plan
    other = job_of(forbid={"critic_train": first}, keep_layout=["actor_train", "actor_generate"])
    after = search(other, warm_start=before).plan
    for task in ("actor_train", "actor_generate"):
        assert stages_of(after.task(task)) == stages_of(before.task(task))
    assert nodes_of(other, after, "critic_train") == {job.topology.nodes[1].id}
    assert evaluate(other, after, UnitCosts(CostModel.builtin(), job.precision)).feasible


def test_kept_layouts_of_several_groups_stay_on_their_devices_also_where_groups_are_merged() -> None:
    """A group of two such tasks holds the devices of both, and not only as many as either has on a node."""
    name = "guideC/Llama-3-8B/DPO"
    job = job_of(name, budget=60)
    context = SearchContext(job, UnitCosts(CostModel.builtin(), job.precision))
    halves = context.counts([4, 4])
    for grouping in (((0,), (1,)), ((1,), (0,))):
        cost = context.steps.cost(grouping, (halves, halves), math.inf)
        candidate = Candidate(grouping=grouping, assignment=(halves, halves), cost=cost)
        start = place(NodeRules(context), candidate)
        names = [task.name for task in job.workflow.tasks]
        kept = job_of(name, budget=60, keep_layout=names)
        rules = NodeRules(SearchContext(kept, context.costs), start)
        assert [len(start.task(each).devices) for each in names] == [8, 8]
        assert rules.admits((0,), halves) and rules.admits((1,), halves)
        assert not rules.admits((0, 1), halves) and not rules.admits((0, 1), context.counts([7, 8]))
        assert rules.admits((0, 1), context.counts([8, 8]))
        after = search(kept, warm_start=start).plan
        assert all(stages_of(after.task(each)) == stages_of(start.task(each)) for each in names)


def test_a_kept_layout_may_be_one_that_the_search_would_not_make() -> None:
    job = job_of(budget=600)
    found = search(job).plan
    trained = found.task("critic_train")
    devices = [device for stage in trained.replicas[0].stages for device in stage.devices][:1]
    layers = job.workflow.task("critic_train").model.num_layers
    whole = replace(
        trained.replicas[0],
        num_prompts=job.batch.num_prompts,
        stages=(replace(trained.replicas[0].stages[0], num_layers=layers, devices=tuple(devices)),),
    )
    others = [task for task in found.tasks if task.task != "critic_train"]
    lonely = replace(found, tasks=(*others, replace(trained, replicas=(whole,), sharding="none")))
    after = search(job_of(keep_layout="critic_train"), warm_start=lonely).plan
    assert stages_of(after.task("critic_train")) == [[(layers, tuple(devices))]]


def test_keeping_a_layout_needs_a_plan_to_keep_it_from() -> None:
    with pytest.raises(SpecError, match=r"optimizer.constraints.keep_layout.*--warm-start"):
        search(job_of(keep_layout=["actor_train"]))


@pytest.mark.parametrize("key", ["pin", "forbid"])
def test_a_layout_to_keep_on_nodes_that_are_ruled_out_names_both_constraints(key: str) -> None:
    first, second = (node.id for node in job_of().topology.nodes)
    before = search(job_of(pin={"actor_train": first, "actor_generate": second})).plan
    for task, on, off in (("actor_train", first, second), ("actor_generate", second, first)):
        listed = off if key == "pin" else on
        with pytest.raises(SpecError) as caught:
            search(job_of(keep_layout=task, **{key: {task: listed}}), warm_start=before)
        said = (
            f"optimizer.constraints.keep_layout: {task} is to stay on {on}, which optimizer.constraints.{key}.{task} "
        )
        assert said in str(caught.value)


def test_kept_tasks_on_common_devices_must_all_be_allowed_there() -> None:
    before = search(job_of()).plan
    tasks = max(before.groups, key=lambda group: len(group.devices)).tasks
    assert len(tasks) > 1
    nodes = {node for task in tasks for node in nodes_of(job_of(), before, task)}
    with pytest.raises(SpecError, match="is to stay on"):
        search(job_of(keep_layout=list(tasks), forbid={tasks[0]: [min(nodes)]}), warm_start=before)


@pytest.mark.slow
def test_rules_that_no_assignment_obeys_are_named_as_the_reason() -> None:
    job = job_of()
    first = job.topology.nodes[0].id
    found = search(job).plan
    trained = found.task("actor_train")
    layers = job.workflow.task("actor_train").model.num_layers
    replicas = tuple(  # sixteen whole models, one on every device of both nodes
        Replica(num_prompts=job.batch.num_prompts // 16, stages=(Stage(num_layers=layers, devices=(device,)),))
        for device in range(16)
    )
    everywhere = replace(
        found, tasks=tuple(replace(each, replicas=replicas) if each is trained else each for each in found.tasks)
    )
    others = {task.task: first for task in found.tasks if task is not trained}
    with pytest.raises(InfeasibleError) as caught:
        search(job_of(keep_layout="actor_train", pin=others), warm_start=everywhere)
    said = str(caught.value)
    assert "optimizer.constraints.keep_layout: actor_train" in said
    assert f"optimizer.constraints.pin: actor_generate only on {first}" in said


@pytest.mark.parametrize("keep", [None, "actor_train"])
def test_a_price_that_no_plan_keeps_is_answered_with_the_cheapest_found(keep: str | None) -> None:
    before = search(job_of()).plan
    kept = {} if keep is None else {"keep_layout": keep}
    with pytest.raises(InfeasibleError) as caught:
        search(job_of(max_usd_per_step=1e-9, **kept), warm_start=before)
    said = str(caught.value)
    cheapest = search(
        benchmark_instance(
            GUIDE_C,
            {
                "optimizer.budget": 300,
                "optimizer.objective": "usd_per_step",
                "optimizer.constraints": kept or None,
            },
        ),
        warm_start=before,
    )
    assert f"the cheapest found costs ${cheapest.estimate.usd_per_step:.4g} " in said
    assert "max_usd_per_step: at most 1e-09 $ per step" in said
    assert "LoRA" not in said and "--warm-start" not in said


def test_a_warm_start_that_breaks_a_constraint_is_no_answer() -> None:
    job = job_of(budget=600)
    before = search(job).plan
    node = next(iter(nodes_of(job, before, "reward_score")))
    limited = job_of(budget=30, forbid={"reward_score": [node]})
    assert node not in nodes_of(limited, search(limited, warm_start=before).plan, "reward_score")


def test_every_wrong_name_is_reported_with_its_path() -> None:
    with pytest.raises(SpecError) as caught:
        job_of(pin={"actor_tran": ["node-a100-01"], "actor_train": ["nowhere"]}, keep_layout=["critc_train"], maximum=3)
    said = str(caught.value)
    for line in (
        "optimizer.constraints.pin: unknown task (found: actor_tran); valid: did you mean 'actor_train'",
        "optimizer.constraints.pin.actor_train: unknown node (found: nowhere)",
        "optimizer.constraints.keep_layout: unknown task (found: critc_train); valid: did you mean 'critic_train'",
        "optimizer.constraints.maximum: unknown key",
    ):
        assert line in said


@pytest.mark.parametrize(
    ("constraints", "path"),
    [
        ({"pin": ["actor_train"]}, "optimizer.constraints.pin: must be a mapping"),
        ({"pin": {"actor_train": 3}}, "optimizer.constraints.pin.actor_train: must be a list of names"),
        ({"max_usd_per_step": -1}, "optimizer.constraints.max_usd_per_step: not a valid number"),
        ({"keep_layout": {}}, "optimizer.constraints.keep_layout: must be a list of names"),
    ],
)
def test_wrong_shapes_are_reported(constraints: dict[str, object], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        benchmark_instance(GUIDE_C, {"optimizer.constraints": constraints})
    assert path in str(caught.value)


def test_a_task_without_any_node_is_reported() -> None:
    nodes = [node.id for node in job_of().topology.nodes]
    with pytest.raises(SpecError, match=r"optimizer.constraints: no node is left for actor_train"):
        job_of(pin={"actor_train": nodes[:1]}, forbid={"actor_train": nodes[:1]})


@pytest.mark.slow
def test_constraints_are_named_where_they_leave_nothing_that_fits() -> None:
    job = benchmark_instance("guide20", {"optimizer.budget": 60})
    small = job.topology.nodes[2].id
    settings = replace(job.optimizer, constraints=Constraints(pin={"actor_train": (small,)}))
    with pytest.raises(InfeasibleError) as caught:
        search(replace(job, optimizer=settings))
    assert str(caught.value).startswith("no plan fits within the constraints")
    assert f"optimizer.constraints.pin: actor_train only on {small}" in str(caught.value)


@pytest.mark.slow
def test_a_price_limit_is_searched_for_and_not_only_checked() -> None:
    job = benchmark_instance("guide20", {"optimizer.budget": 600})
    fast = search(job).estimate
    cheap = search(replace(job, optimizer=replace(job.optimizer, objective="usd_per_step"))).estimate
    assert fast.usd_per_step is not None and cheap.usd_per_step is not None
    limit = (fast.usd_per_step + cheap.usd_per_step) / 2
    limited = replace(job, optimizer=replace(job.optimizer, constraints=Constraints(max_usd_per_step=limit)))
    found = search(limited).estimate
    assert found.usd_per_step is not None and found.usd_per_step <= limit
    assert fast.step_seconds < found.step_seconds <= cheap.step_seconds


def test_a_price_limit_nobody_can_meet_says_so() -> None:
    with pytest.raises(InfeasibleError, match=r"optimizer.constraints.max_usd_per_step: at most 1e-09 \$ per step"):
        search(job_of("guide20", budget=60, max_usd_per_step=1e-9))


def test_dollars_need_prices() -> None:
    node = {"id": "a", "gpus": 8, "type": "A100-80GB", "usd_per_hour": None}
    described = {"id": "b", "gpus": 8, "type": "mine"}
    values = {
        "cluster_topology.nodes": [node, described],
        "device_types": {"mine": {"flops": "300TFLOPS", "memory": "80GB", "memory_bandwidth": "2TB/s"}},
        "optimizer.objective": "usd_per_million_tokens",
    }
    with pytest.raises(SpecError, match=r"cluster_topology.nodes\[1\].usd_per_hour: no price known for b"):
        benchmark_instance(GUIDE_C, values)
