"""The exact solver as a whole on small jobs: evaluator, certificate, hybrid search, other workflows and objectives."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks.enumeration import enumerate_space, tiny_job
from benchmarks.search import small_job
from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel
from hetrl.cost.tables import CostTables
from hetrl.cost.unit import UnitCosts
from hetrl.errors import SpecError
from hetrl.plan.plan import Group
from hetrl.plan.rules import plan_problems
from hetrl.search.exact import Certificate, ExactResult, NodeClass, space
from hetrl.search.exact.milp import UNITS, solve_mps
from hetrl.search.exact.problem import ExactProblem
from hetrl.search.exact.solver import solve_exact
from hetrl.search.hybrid import solve
from hetrl.spec.job import Job
from hetrl.spec.load import job_from_values
from tests.helpers.jobs import two_nodes, workflow_job

PRICED = {
    "optimizer.objective": "usd_per_step",
    "cluster_topology.nodes[0].usd_per_hour": 40,
    "cluster_topology.nodes[1].usd_per_hour": 8,
}


def solved(job: Job, **more: object) -> ExactResult:
    return solve_exact(job, UnitCosts(CostModel.builtin(), job.precision), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(12))
def test_optimum_is_what_the_evaluator_says_and_no_worse_than_the_search(seed: int) -> None:
    job = small_job(seed)
    result = solved(job)
    assert result.status == "optimal"
    assert result.plan is not None
    estimate = evaluate(job, result.plan, UnitCosts(CostModel.builtin(), job.precision))
    assert estimate.feasible
    assert estimate.step_seconds <= min(result.objective, result.seed_objective) * (1 + 1e-12)
    assert result.lower_bound == pytest.approx(result.objective, rel=1e-9)
    assert plan_problems(job, result.plan) == []


@pytest.mark.parametrize("algorithm", ["PPO", "GRPO", "ReMax", "RLOO", "DPO", "multi-reward"])
def test_every_workflow(algorithm: str) -> None:
    job = workflow_job(algorithm)
    result = solved(job)
    assert result.status == "optimal"
    assert result.estimate is not None
    assert result.estimate.step_seconds <= min(result.objective, result.seed_objective) * (1 + 1e-12)
    assert result.certificate is not None


@pytest.mark.parametrize("staleness", [1, 3])
def test_asynchronous_periods(staleness: int) -> None:
    job = workflow_job("GRPO", staleness=staleness)
    result = solved(job)
    assert result.status == "optimal"
    assert result.objective <= result.seed_objective * (1 + 1e-12)
    assert result.objective < solved(workflow_job("GRPO")).objective


def test_dollars_per_step() -> None:
    result = solved(two_nodes(PRICED))
    assert result.status == "optimal"
    assert result.objective <= result.seed_objective * (1 + 1e-12)
    assert result.estimate is not None
    assert result.estimate.usd_per_step == pytest.approx(result.objective, rel=1e-12)
    fastest = solved(two_nodes({**PRICED, "optimizer.objective": "step_seconds"}))
    assert fastest.estimate is not None
    assert fastest.estimate.usd_per_step is not None
    assert fastest.objective <= result.estimate.step_seconds * (1 + 1e-12)
    assert result.objective <= fastest.estimate.usd_per_step * (1 + 1e-12)
    assert result.certificate is None


def test_bound_of_best_links_lies_below_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    job = two_nodes(
        {
            "cluster_topology.nodes[1].type": "H100",
            "cluster_topology.nodes[1].interconnect": "NVLink-900G",
            "cluster_topology.nodes[0].network": "10Gbps",
            "cluster_topology.nodes[1].network": "100Gbps",
        }
    )
    exact = solved(job)
    assert exact.status == "optimal"
    assert len(exact.space.classes) == 2
    monkeypatch.setattr(space, "MAX_VECTORS", 1)
    monkeypatch.setattr(space, "node_classes", _by_device_type)
    bounded = solved(job)
    assert bounded.status == "feasible"
    assert bounded.space.best_links
    assert len(bounded.space.classes) == 1
    assert "best link" in bounded.space.text
    assert bounded.lower_bound <= exact.objective * (1 + 1e-9) <= bounded.objective * (1 + 2e-9)


def test_groups_that_fit_alone_but_not_together_are_infeasible() -> None:
    """ReMax, asynchronous, on three L4: columns exist for every group, and no combination of them fits."""
    job = tiny_job(463)
    result = solved(job)
    assert result.counts["combinations_evaluated"] > 0
    assert result.status == "infeasible" and result.plan is None
    assert "memory" in result.message.lower()


@pytest.mark.slow
def test_groups_of_large_fleets_have_devices_in_multiples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enumerated and proven in the same coarse space; an odd vector does not belong to it."""
    monkeypatch.setattr(space, "MAX_FINE_VECTORS", 6)
    job = small_job(15)  # nodes of 4 and 2 devices
    costs = UnitCosts(CostModel.builtin(), job.precision)
    best, evaluated = enumerate_space(job, costs)
    coarse = solved(job)
    assert evaluated > 1000
    assert coarse.status == "optimal"
    assert coarse.objective == pytest.approx(best, rel=1e-9)
    assert "in multiples of 4" in coarse.space.text
    declared = ExactProblem(job, costs).space
    assert declared.admits((4, 1)) and not declared.admits((2, 1)) and not declared.admits((8, 0))


def test_the_class_with_most_steps_is_made_coarser_first() -> None:
    def nodes(number: int, size: int) -> NodeClass:
        return NodeClass(nodes=tuple(range(number)), node_ids=("",) * number, device_type="H100", size=size)

    assert space.units_of([nodes(8, 8), nodes(4, 8), nodes(4, 8)]) == (4, 1, 1)  # 17 x 33 x 33 vectors
    assert space.units_of([nodes(2, 8), nodes(3, 8), nodes(3, 8)]) == (1, 1, 1)  # 17 x 25 x 25
    assert space.units_of([nodes(200_000, 1)]) == (1,)  # nothing to take together


def _by_device_type(job: Job, tables: CostTables, *, links: bool) -> tuple[NodeClass, ...]:
    """One class of all nodes, whatever their cards and links, unless these count."""
    nodes = range(len(job.topology.nodes))
    groups = [[node] for node in nodes] if links else [list(nodes)]
    return tuple(
        NodeClass(
            nodes=tuple(group),
            node_ids=tuple(job.topology.nodes[node].id for node in group),
            device_type="H100",
            size=job.topology.nodes[0].num_devices,
        )
        for group in groups
    )


def test_constraints_are_refused_by_name() -> None:
    with pytest.raises(SpecError, match="constraints"):
        solved(two_nodes({"optimizer.constraints.forbid": {"actor_train": ["slow"]}}))


def test_certificate_is_plain_data_and_two_solvers_agree() -> None:
    result = solved(small_job(5))
    assert result.certificate is not None
    text = json.dumps(result.certificate.to_json(), allow_nan=False)
    again = Certificate.from_json(json.loads(text))
    assert again == result.certificate
    for mip in ("cbc", "highs"):
        answer = solve_mps(again.mps, mip)
        assert answer.status == "optimal"
        assert answer.objective == pytest.approx(UNITS, rel=1e-9)


def test_result_depends_neither_on_the_start_nor_on_the_number_of_processes() -> None:
    job = workflow_job("GRPO")
    result = solved(job)
    again = solved(job, warm_start=result.plan, threads=2)
    assert again.objective == result.objective
    assert again.counts["combinations_evaluated"] <= result.counts["combinations_evaluated"]


def test_a_gap_that_is_good_enough_holds() -> None:
    job = small_job(0)
    exact = solved(job)
    loose = solved(job, gap=0.05)
    assert loose.gap <= 0.05 + 1e-12
    assert loose.lower_bound <= exact.objective <= loose.objective * (1 + 1e-12)


@pytest.mark.slow
def test_jobs_that_fit_nowhere_are_proven_infeasible() -> None:
    job = job_from_values(
        {
            "workflow": {"algorithm": "GRPO", "actor_model": "Llama-3-70B", "reference_model": "Llama-3-70B"},
            "cluster_topology": {"nodes": [{"id": "a", "gpus": 2, "type": "L4", "interconnect": "PCIe-Gen4"}]},
        },
        source="test",
    )
    result = solved(job)
    assert result.status == "infeasible"
    assert result.plan is None
    assert "actor_train" in result.message


def test_no_time_gives_the_warm_start_with_a_bound() -> None:
    job = workflow_job("PPO")
    exact = solved(job)
    hurried = solved(job, warm_start=exact.plan, time_limit_seconds=0.0)
    assert hurried.status == "feasible"
    assert hurried.stopped_by_time
    assert hurried.objective == pytest.approx(exact.objective, rel=1e-12)
    assert hurried.lower_bound <= exact.objective
    assert hurried.certificate is None


def test_unknown_integer_solver_is_refused() -> None:
    with pytest.raises(SpecError, match="cbc, highs, gurobi"):
        solved(small_job(2), mip="scip")


def test_certificates_are_frozen() -> None:
    result = solved(small_job(2))
    assert result.certificate is not None
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.certificate.optimum_seconds = 0.0  # type: ignore[misc]


def test_an_interrupt_gives_the_best_plan_with_a_bound() -> None:
    job = workflow_job("GRPO")
    exact = solved(job)

    def interrupt(*_: float) -> None:
        raise KeyboardInterrupt

    result = solved(job, progress=interrupt)
    assert result.interrupted
    assert result.status == "feasible"
    assert result.plan is not None
    assert result.lower_bound <= exact.objective * (1 + 1e-12) <= result.objective * (1 + 2e-12)


def test_idle_groups_of_a_start_are_no_groups() -> None:
    job = workflow_job("GRPO")
    start = solve(job, UnitCosts(CostModel.builtin(), job.precision)).plan
    idle = dataclasses.replace(start, groups=(*start.groups, Group(tasks=(), devices=())))
    result = solved(job, warm_start=idle)
    assert result.objective == pytest.approx(solved(job).objective, rel=1e-12)


@pytest.mark.slow
def test_host_memory_is_named_where_it_is_what_no_plan_fits_into() -> None:
    ram = {f"cluster_topology.nodes[{number}].host_ram": "6GiB" for number in (0, 1)}
    result = solved(two_nodes(ram))
    assert result.status == "infeasible"
    assert "host memory of fast" in result.message
    assert "it has 6.0 GiB" in result.message
    enough = dict.fromkeys(ram, "64GiB")
    assert solved(two_nodes(enough)).status == "optimal"
