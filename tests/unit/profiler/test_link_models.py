"""Measured links, copies and optimizer steps of made-up profiles: what reaches the cost model and plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetrl.cost.model import CostModel
from hetrl.cost.operators import OperatorLibrary
from hetrl.measure import Measurement
from hetrl.spec.job import Job
from hetrl.spec.topology import CollectiveTerms, Link
from hetrl_profiler.link_models import (
    measured_host_links,
    measured_links,
    measured_network,
    node_curves,
    terms_text,
)
from hetrl_profiler.model_fit import fit_profile

SIZES = (2**10, 2**14, 2**18, 2**22)


@pytest.fixture
def row(made_up: SimpleNamespace) -> object:
    def make(
        kind: str, seconds: float, device: str = "fast", *, labels: dict[str, str] | None = None, **amounts: float
    ) -> Measurement:
        return Measurement(
            kind=kind, device_type=device, amounts=amounts, measured={"seconds": seconds},
            machine=replace(made_up.machine, memory_bytes=2**34),
            labels={"source": "profile", "dtype": "fp32", "implementation": "gloo", **(labels or {})},
            date="2026-01-01T00:00:00+00:00",
        )  # fmt: skip

    return make


def sends(row, link: str, latency: float, bandwidth: float, **labels: str) -> list[Measurement]:  # type: ignore[no-untyped-def]
    return [
        row("send", latency + size / bandwidth, num_bytes=size, num_ranks=2, labels={"link": link, **labels})
        for size in SIZES
    ]


def test_links_inside_a_host_and_between_nodes_are_kept_apart(row) -> None:  # type: ignore[no-untyped-def]
    rows = [*sends(row, "loopback", 1e-4, 2e9), *sends(row, "network", 1e-3, 1e9, peer="slow")]
    (inside,) = measured_links(rows).values()
    assert inside.latency_seconds == pytest.approx(1e-4) and inside.bytes_per_second == pytest.approx(2e9)
    network = measured_network(rows)
    assert set(network) == {("fast", "slow"), ("slow", "fast")}
    assert network["slow", "fast"].bytes_per_second == pytest.approx(1e9)
    assert node_curves(rows) == ()


def test_the_slower_direction_of_copies_counts(row) -> None:  # type: ignore[no-untyped-def]
    rows = [row("copy_to_device", 1e-5 + size / 2e10, num_bytes=size) for size in SIZES]
    rows += [row("copy_to_host", 1e-5 + size / 1e10, num_bytes=size) for size in SIZES]
    assert measured_host_links(rows)["fast"] == pytest.approx(1e10)


def test_collectives_by_number_of_ranks(row) -> None:  # type: ignore[no-untyped-def]
    rows = [
        row(
            "all_gather", ranks * 1e-5 + size * 1e-10, num_bytes=size, num_ranks=ranks, link_bytes_per_second=3e11,
            labels={"link": "nvlink_intra"},
        )
        for size in SIZES for ranks in (2, 4)
    ]  # fmt: skip
    two, four = node_curves(rows)
    assert (two.num_ranks, four.num_ranks) == (2, 4)
    assert four.terms.offset_seconds == pytest.approx(4e-5) and four.link_bytes_per_second == 3e11


def test_measured_copies_and_networks_reach_plans(job: Job, tmp_path: Path) -> None:
    link = Link(latency_seconds=1e-3, bytes_per_second=5e8, kind="measured")
    model = CostModel(
        library=OperatorLibrary.builtin(),
        host_links={"fast": 7e9},
        network={("fast", "slow"): link, ("slow", "fast"): link},
    )
    model.save(tmp_path / "model.json")
    again = CostModel.load(tmp_path / "model.json")
    assert again.host_links == model.host_links and again.network == model.network
    topology = again.with_links(job).topology
    assert [node.host_link_bytes_per_second for node in topology.nodes] == [
        7e9,
        job.topology.nodes[1].host_link_bytes_per_second,
    ]
    assert topology.node_link(0, 1) == link
    far = replace(job.topology.nodes[1], region="elsewhere")
    apart = replace(job, topology=replace(job.topology, nodes=(job.topology.nodes[0], far)))
    assert again.with_links(apart).topology.node_link(0, 1) == apart.topology.node_link(0, 1)


def test_optimizer_steps_without_a_model_calibrate_by_their_bytes(row) -> None:  # type: ignore[no-untyped-def]
    """fp32 AdamW: 16 bytes per parameter through the memory; here at half of the measured bandwidth of 1e10 byte/s."""
    rows = [row("gemm", 1e-3, m=512, n=512, k=512), row("memory", 1e-3, bytes=1e7)]
    rows += [row("optimizer_step", 16 * number / 5e9, num_parameters=number) for number in (1e5, 1e6, 1e7)]
    model = fit_profile(rows, CostModel.builtin())[0].model
    seconds = model.calibration("fast", "optimizer").seconds(16 * 3e6 / 1e10, 1, 0)
    assert seconds == pytest.approx(16 * 3e6 / 5e9, rel=0.02)


def test_operators_in_several_dtypes_and_phases_in_one(row) -> None:  # type: ignore[no-untyped-def]
    rows = []
    for dtype, speed in (("fp32", 1e11), ("bf16", 2e11)):
        for number in range(12):
            m = 64 * (number + 1)
            rows.append(row("gemm", 2 * m * 512 * 512 / speed, m=m, n=512, k=512, labels={"dtype": dtype}))
            rows.append(row("memory", 1e-4 * (number + 1), bytes=1e6 * (number + 1), labels={"dtype": dtype}))
    rows.append(row("optimizer_step", 1e-2, num_parameters=1e6, labels={"dtype": "bf16"}))
    fitted, operators = fit_profile(rows, CostModel.builtin())
    assert {(each.operator, each.dtype) for each in operators} == {
        (operator, dtype) for operator in ("gemm", "memory") for dtype in ("fp32", "bf16")
    }
    slow, fast = (fitted.model.library.fitted("fast", "gemm", dtype) for dtype in ("fp32", "bf16"))
    assert slow is not None and fast is not None
    ratio = slow.predict(m=400, n=512, k=512).seconds / fast.predict(m=400, n=512, k=512).seconds
    assert ratio == pytest.approx(2.0, rel=0.1)
    assert set(fitted.calibrations) == {("fast", "optimizer")}


def test_an_all_reduce_between_nodes_is_held_against_the_link_between_them(job: Job, row) -> None:  # type: ignore[no-untyped-def]
    """2 ranks over the stated 2 GB/s: composed and measured are equal, so the calibration of reduces stays at 1."""
    link = job.topology.node_link(0, 1)
    rows = [row("gemm", 1e-3, m=512, n=512, k=512), row("memory", 1e-3, bytes=1e7)]
    rows += [
        row(
            "all_reduce", 2 * (link.latency_seconds + size / 2 / link.bytes_per_second), num_bytes=size, num_ranks=2,
            labels={"link": "network", "peer": "slow"},
        )
        for size in SIZES
    ]  # fmt: skip
    found = fit_profile(rows, CostModel.builtin(), job=job)[0]
    new = found.model.calibration("fast", "reduce")
    assert new.provenance == "measured" and new.scale == pytest.approx(1.0, rel=1e-3)
    assert new.per_iteration_seconds == pytest.approx(0.0, abs=1e-6)


def test_the_terms_of_a_collective_read_as_the_formula_they_are() -> None:
    terms = CollectiveTerms(offset_seconds=2446e-6, seconds_per_sqrt_byte=12e-9, seconds_per_byte=1 / 1.09e9)
    assert terms_text(terms) == "2446 us + 12 ns x sqrt(bytes) + bytes / (1.09 GB/s)"
    assert terms_text(replace(terms, seconds_per_sqrt_byte=0.0, seconds_per_byte=0.0)) == "2446 us"
