"""The evaluator on plans whose figures can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hetrl.cost.evaluate import evaluate
from hetrl.cost.generation import decode_profile, survival
from hetrl.cost.model import PhaseCalibration
from hetrl.plan.plan import Group, Plan, Replica, Residency, Stage, TaskPlan
from hetrl.spec.job import Batch, Job
from hetrl.units import GIB
from hetrl.workload.flops import forward_flops
from tests.helpers.jobs import two_nodes
from tests.helpers.textbook import textbook_costs

LAYERS = 28


def replica(devices: tuple[int, ...], prompts: int) -> Replica:
    return Replica(stages=(Stage(num_layers=LAYERS, devices=devices),), num_prompts=prompts)


def plan_of(*, train_devices: tuple[int, ...] = (0, 1, 2, 3), score_devices: tuple[int, ...] = (4, 5, 6, 7)) -> Plan:
    """Generate and train on the fast node, score on the slow one."""
    train = TaskPlan(
        task="actor_train",
        replicas=(replica(train_devices, 64),),
        micro_batch_size=1,
        residency=Residency(optimizer_states="host_when_idle"),
    )
    generate = TaskPlan(
        task="actor_generate",
        replicas=(replica((0, 1, 2, 3), 64),),
        micro_batch_size=64,
        residency=Residency(weights_when_idle="dropped"),
    )
    score = TaskPlan(task="reference_score", replicas=(replica(score_devices, 64),), micro_batch_size=4)
    return Plan(
        groups=(
            Group(tasks=("actor_generate", "actor_train"), devices=(0, 1, 2, 3)),
            Group(tasks=("reference_score",), devices=(4, 5, 6, 7)),
        ),
        tasks=(generate, score, train),
    )


def test_step_is_the_longest_path() -> None:
    job = two_nodes()
    estimate = evaluate(job, plan_of(), textbook_costs(job))
    assert estimate.feasible, estimate.problems
    path = sum(estimate.tasks[name].seconds for name in ("actor_generate", "reference_score", "actor_train"))
    moved = {(each.source, each.target): each.seconds for each in estimate.transfers}
    path += moved["actor_generate", "reference_score"] + moved["reference_score", "actor_train"]
    path += moved["actor_train", "actor_generate"]
    assert estimate.step_seconds == pytest.approx(path, rel=1e-12)
    assert estimate.schedule.critical_path == (
        "actor_generate",
        "reference_score",
        "actor_train",
        "sync:actor_generate",
    )


def test_scoring_by_hand() -> None:
    """256 sequences of 768 tokens at four to a micro-batch on four L40S: FLOPs over peak, plus all-reduces."""
    job = two_nodes()
    estimate = evaluate(job, plan_of(), textbook_costs(job))
    model = job.workflow.task("reference_score").model
    device = job.topology.nodes[1].device_type
    compute = forward_flops(model, num_sequences=256, new_tokens=768) / 4 / device.flops_per_second["bf16"]
    link = job.topology.nodes[1].intra_link
    hidden = 4 * 768 * model.hidden_size * 2
    reduces = 64 * 2 * LAYERS * 2 * 3 * (link.latency_seconds + hidden / 4 / link.bytes_per_second)
    layer = model.layers[0]
    elements = 10 * model.hidden_size + (2 * (28 + 4) * 128 + 3 * layer.intermediate_size) / 4
    memory = LAYERS * 256 * 768 * elements * 2 / device.memory_bytes_per_second
    assert estimate.tasks["reference_score"].seconds == pytest.approx(compute + reduces + memory, rel=1e-6)


def test_training_counts_three_forward_passes_and_old_log_probabilities() -> None:
    job = two_nodes()
    plain = evaluate(job, plan_of(), textbook_costs(job)).tasks["actor_train"]
    again = replace(plan_of().task("actor_train"), recompute=True)
    recomputed = evaluate(
        job, Plan(groups=plan_of().groups, tasks=(*plan_of().tasks[:2], again)), textbook_costs(job)
    ).tasks["actor_train"]
    overhead = plain.switch_seconds + plain.communication_seconds + plain.details["optimizer_seconds"]
    # 1 (old log-probabilities) + 3 passes against 1 + 4, tensor-parallel all-reduces 1 + 2 against 1 + 3
    assert (recomputed.seconds - overhead) / (plain.seconds - overhead) == pytest.approx(5 / 4, rel=0.03)


def test_calibration_scales_and_adds() -> None:
    job = two_nodes()
    plain = evaluate(job, plan_of(), textbook_costs(job)).tasks["reference_score"].seconds
    calibrated = textbook_costs(
        job, {("L40S", "score"): PhaseCalibration(scale=1.0, per_iteration_seconds=0.01, per_sequence_seconds=0.001)}
    )
    added = evaluate(job, plan_of(), calibrated).tasks["reference_score"].seconds - plain
    assert added == pytest.approx(64 * 0.01 + 256 * 0.001, rel=1e-9)  # 64 micro-batches of four


def test_memory_terms_by_hand() -> None:
    job = two_nodes()
    estimate = evaluate(job, plan_of(), textbook_costs(job))
    terms = estimate.memory.devices[0]["actor_train"]
    parameters = job.workflow.task("actor_train").model.num_parameters
    assert terms["weights"] == pytest.approx(2 * parameters / 4)
    assert terms["gradients"] == pytest.approx(2 * parameters / 4)
    assert terms["optimizer"] == pytest.approx(12 * parameters / 4)
    idle = estimate.memory.devices[0]["actor_generate"]["actor_train (idle)"]
    assert idle == pytest.approx(2 * parameters / 4 + 1.5 * GIB)  # weights stay, states are on the host
    assert estimate.memory.hosts[0] >= 12 * parameters


def test_too_little_memory_is_named() -> None:
    job = two_nodes()
    resident = replace(plan_of().task("actor_train"), residency=Residency())
    slow = Plan(
        groups=(
            Group(tasks=("actor_generate", "reference_score"), devices=(0, 1, 2, 3)),
            Group(tasks=("actor_train",), devices=(4, 5, 6, 7)),
        ),
        tasks=(
            replace(plan_of().task("actor_generate"), residency=Residency()),
            TaskPlan(task="reference_score", replicas=(replica((0, 1, 2, 3), 64),), micro_batch_size=4),
            replace(resident, replicas=(replica((4, 5, 6, 7), 64),), micro_batch_size=16),
        ),
    )
    estimate = evaluate(job, slow, textbook_costs(job))
    assert math.isinf(estimate.step_seconds)
    assert {problem.rule for problem in estimate.problems} == {"DEVICE_MEMORY"}
    assert any("activations" in problem.found for problem in estimate.problems)


def test_wrong_shares_and_layers_are_named() -> None:
    job = two_nodes()
    wrong = replace(
        plan_of().task("reference_score"),
        replicas=(Replica(stages=(Stage(num_layers=20, devices=(4, 5, 6, 7)),), num_prompts=60),),
    )
    plan = Plan(groups=plan_of().groups, tasks=(plan_of().tasks[0], wrong, plan_of().tasks[2]))
    rules = {problem.rule for problem in evaluate(job, plan, textbook_costs(job)).problems}
    assert {"BATCH_SPLIT", "PP_SPLIT"} <= rules


def test_survival_has_the_mean_it_was_given() -> None:
    import numpy as np

    for mean in (100.0, 512.0, 900.0):
        batch = Batch(mean_response_tokens=mean, max_response_tokens=1024)
        grid = (np.arange(100_000) + 0.5) * 1024 / 100_000
        assert survival(batch, grid).mean() * 1024 == pytest.approx(mean, rel=1e-3)
    histogram = Batch(response_histogram=((100, 3.0), (500, 1.0)))
    assert survival(histogram, np.array([50.0, 100.0, 400.0, 500.0])).tolist() == [1.0, 0.25, 0.25, 0.0]


def test_decode_profile_generates_every_token() -> None:
    batch = Batch(mean_response_tokens=512, max_response_tokens=1024)
    for sequences, running in ((64, 64), (256, 64), (10, 1)):
        active, _, iterations = decode_profile(batch, sequences, running)
        assert float(active @ iterations) == pytest.approx(sequences * 512, rel=0.01)


def swap_devices(plan: Plan, a: int, b: int) -> Plan:
    other = {a: b, b: a}

    def moved(devices: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(other.get(device, device) for device in devices)

    return Plan(
        groups=plan.groups,
        tasks=tuple(
            replace(
                task,
                replicas=tuple(
                    replace(each, stages=tuple(replace(stage, devices=moved(stage.devices)) for stage in each.stages))
                    for each in task.replicas
                ),
            )
            for task in plan.tasks
        ),
    )


def test_swapping_equal_devices_changes_nothing() -> None:
    job = two_nodes()
    plan = plan_of()
    costs = textbook_costs(job)
    assert evaluate(job, swap_devices(plan, 1, 3), costs).step_seconds == evaluate(job, plan, costs).step_seconds


def faster(job: Job, factor: float) -> Job:
    nodes = tuple(
        replace(
            node,
            nic_bytes_per_second=node.nic_bytes_per_second * factor,
            intra_link=replace(node.intra_link, bytes_per_second=node.intra_link.bytes_per_second * factor),
        )
        for node in job.topology.nodes
    )
    return replace(job, topology=type(job.topology)(nodes))


@pytest.mark.parametrize("factor", [1.5, 10.0])
def test_faster_links_never_hurt(factor: float) -> None:
    job = two_nodes()
    quick = faster(job, factor)
    assert (
        evaluate(quick, plan_of(), textbook_costs(quick)).step_seconds
        < evaluate(job, plan_of(), textbook_costs(job)).step_seconds
    )
