"""Collectives measured inside a node: which nodes they hold for, what follows from them, and that plans use them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.random_plans import option_error, random_assignments, random_options, step_error
from hetrl.cost.collectives import all_gather_seconds, all_reduce_seconds, best_all_reduce_seconds
from hetrl.cost.model import CostModel, PhaseCalibration
from hetrl.cost.model_files import BUILTIN, read_links, write_library
from hetrl.cost.node_collectives import NodeCurve, measured_collectives
from hetrl.cost.operators import OperatorLibrary
from hetrl.cost.unit import UnitCosts
from hetrl.errors import SpecError
from hetrl.search.context import SearchContext
from hetrl.spec.presets import benchmark_instance
from hetrl.spec.topology import CollectiveTerms
from tests.helpers.jobs import two_nodes

TERMS = CollectiveTerms(offset_seconds=3e-5, seconds_per_sqrt_byte=1e-8, seconds_per_byte=4e-12)


def curve(device: str = "H100", operation: str = "all_reduce", ranks: int = 8, bandwidth: float = 0.0) -> NodeCurve:
    return NodeCurve(
        device=device, operation=operation, num_ranks=ranks, link_bytes_per_second=bandwidth, terms=TERMS
    )  # fmt: skip


def model_with(*curves: NodeCurve) -> CostModel:
    return CostModel(library=OperatorLibrary.builtin(), collectives=curves)


def test_only_nodes_like_the_host_get_its_curves() -> None:
    topology = benchmark_instance("guide20").topology
    h100, a100 = topology.nodes[0], topology.nodes[1]
    assert measured_collectives(a100, [curve()]) is None
    assert measured_collectives(h100, [curve(bandwidth=64e9)]) is None, "measured over PCIe"
    found = measured_collectives(h100, [curve(bandwidth=450e9)])
    assert found is not None and found.terms["all_reduce", 8] == TERMS


def test_what_was_not_measured_follows_from_the_nearest() -> None:
    node = benchmark_instance("guide20").topology.nodes[0]
    found = measured_collectives(node, [curve(ranks=8), curve(ranks=2)])
    assert found is not None
    four = found.terms["all_reduce", 4]  # as near to 2 as to 8: 3 times the steps of 2 ranks, 1.5 times the bytes
    assert four.offset_seconds == pytest.approx(9e-5)
    assert four.seconds_per_sqrt_byte == pytest.approx(math.sqrt(1.5) * 1e-8)
    assert four.seconds_per_byte == pytest.approx(6e-12)
    gather = found.terms["all_gather", 8]
    assert gather.offset_seconds == pytest.approx(1.5e-5) and gather.seconds_per_byte == pytest.approx(2e-12)


def test_the_users_own_measurements_go_before_published_ones() -> None:
    node = benchmark_instance("guide20").topology.nodes[0]
    (builtin,) = {each.provenance for each in CostModel.builtin().collectives}
    assert builtin == "fitted"
    found = measured_collectives(node, [curve(ranks=2), *CostModel.builtin().collectives])
    assert found is not None and found.provenance == "measured"
    assert found.terms["all_reduce", 8].seconds_per_byte == pytest.approx(TERMS.seconds_per_byte * 14 / 8)


def test_collectives_inside_a_node_take_what_was_measured_and_others_the_ring() -> None:
    job = model_with(curve()).with_links(benchmark_instance("guide20"))
    inside = job.topology.nodes[0].intra_link
    assert all_reduce_seconds(1e8, 8, inside) == pytest.approx(3e-5 + 1e-4 + 4e-4)
    assert all_gather_seconds(1e8, 8, inside) == pytest.approx(1.5e-5 + 1e-8 * math.sqrt(0.5e8) + 2e-4)
    assert best_all_reduce_seconds(1e8, job.topology, range(8)) == pytest.approx(5.3e-4)
    plain = benchmark_instance("guide20").topology
    assert best_all_reduce_seconds(1e8, job.topology, [0, 8]) == best_all_reduce_seconds(1e8, plain, [0, 8])


def test_two_levels_use_it_inside() -> None:
    """8 + 8 devices: inside the slower NVLink's node as measured, then between the nodes over the card."""
    curves = (curve("H100"), curve("A100-80GB"))
    job = model_with(*curves).with_links(benchmark_instance("guide20"))
    between = 2 * (job.topology.node_link(0, 1).latency_seconds + 1e9 / (2 * 50e9))
    expected = 3e-5 + 1e-8 * math.sqrt(1e9) + 4e-3 + between
    assert best_all_reduce_seconds(1e9, job.topology, range(16)) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["guide20", "guideA/Llama-3-8B/PPO", "guideC/Qwen2.5-72B/DPO"])
def test_kernels_agree_with_the_evaluator(name: str) -> None:
    """Tensor-parallel groups and gradient rings, inside nodes and across them, all with measured terms."""
    job = benchmark_instance(name)
    kinds = [kind.name for kind in job.topology.device_types]
    curves = [
        NodeCurve(
            device=kind, operation=operation, num_ranks=ranks, link_bytes_per_second=0.0,
            terms=CollectiveTerms(
                offset_seconds=(1 + 3 * number) * 1e-5 * ranks, seconds_per_sqrt_byte=2e-8 * weight,
                seconds_per_byte=(5 + number) * 1e-12 * weight,
            ),
        )
        for number, kind in enumerate(kinds)
        for operation, weight in (("all_reduce", 2.0), ("all_gather", 0.9), ("reduce_scatter", 1.3))
        for ranks in (2, 4, 8)
    ]  # fmt: skip
    reduce = {(kind, "reduce"): PhaseCalibration(scale=1.7, per_iteration_seconds=2e-3) for kind in kinds}
    model = replace(model_with(*curves), calibrations=reduce)
    context = SearchContext(model.with_links(job), UnitCosts(model, job.precision))
    plain = SearchContext(job, UnitCosts(CostModel.builtin(), job.precision))
    differing = 0
    for option in islice(random_options(context, seed=4), 150):
        assert option_error(context, option) <= 1e-12
        differing += option_error(plain, option) > 1e-6
    assert differing > 20, "the measured terms must matter"
    steps = [step_error(context, *each) for each in islice(random_assignments(context, seed=3), 8)]
    assert max(error for error in steps if error is not None) <= 1e-12


def test_saved_and_read_and_old_files(tmp_path: Path) -> None:
    model = replace(
        CostModel.builtin(), collectives=(curve(bandwidth=450e9), curve("cpu", "all_gather", 2)),
        calibrations={("H100", "reduce"): PhaseCalibration(scale=1.2, provenance="measured")},
    )  # fmt: skip
    path = tmp_path / "model.json"
    model.save(path)
    again = CostModel.load(path)
    assert again.collectives == (*model.collectives, *CostModel.builtin().collectives)
    assert again.calibration("H100", "reduce").scale == 1.2
    document = json.loads(path.read_text())
    del document["collectives"]
    document["calibrations"] = [row for row in document["calibrations"] if row["phase"] != "reduce"]
    path.write_text(json.dumps(document))
    old = CostModel.load(path)
    assert old.collectives == CostModel.builtin().collectives
    assert old.calibration("H100", "reduce") == PhaseCalibration()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("collectives", [{"device": "H100", "operation": "shuffle", "num_ranks": 2, "link_bytes_per_second": 0}]),
        ("collectives", [{"device": "H100"}]),
        ("collectives", 7),
        ("network", [{"devices": ["a"], "latency_seconds": 0, "bytes_per_second": 1}]),
        ("network", [{"devices": ["a", "b"], "latency_seconds": -1, "bytes_per_second": 1}]),
        ("host_links", [1]),
        ("host_links", {"a": "fast"}),
    ],
)
def test_damaged_files_are_one_message(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "model.json"
    CostModel(library=OperatorLibrary()).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(SpecError):
        CostModel.load(path)


def test_operator_files_are_cost_models_too(tmp_path: Path) -> None:
    """What `hetrl fit --aiconfigurator` writes goes before the built-in models, and is called what it says it is."""
    said = "measured (some-package 1.0)"
    own = OperatorLibrary.builtin().get("H100", "gemm", "bf16")
    (switched, *_) = [each for each in read_links(BUILTIN) if each.link == "nvlink4_sxm_intra" and each.world_size == 8]
    pcie = replace(switched, link="pcie4_intra", gpu="l40s")
    path = tmp_path / "models.zip"
    write_library(path, [replace(own, provenance=said)], [switched, pcie], {"provenance": said})
    model = CostModel.load(path)
    h100, _, l40s = benchmark_instance("guide20").topology.nodes
    assert model.operator(h100.device_type, "gemm", "bf16").provenance == said
    assert model.operator(h100.device_type, "attention_decode", "bf16").provenance == "fitted"
    inside = measured_collectives(h100, model.collectives)
    assert inside is not None and inside.provenance == said
    assert measured_collectives(l40s, model.collectives) is None, "PCIe hosts differ: their curves are one host's"


def test_provenance_says_where_collectives_come_from() -> None:
    from hetrl.cost.evaluate import evaluate
    from hetrl.search.hybrid import solve

    job = two_nodes()
    job = replace(job, optimizer=replace(job.optimizer, budget=50))
    for model, expected in (
        (model_with(), "datasheet"),
        (CostModel.builtin(), "fitted"),
        (model_with(curve()), "measured"),
    ):
        linked = model.with_links(job)
        costs = UnitCosts(model, job.precision)
        figures = evaluate(linked, solve(linked, costs).plan, costs).provenance
        assert figures["H100.collectives"] == expected
