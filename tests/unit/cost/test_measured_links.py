"""Links measured by a profile: kept in the cost model, used between nodes of one host, and said to be measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hetrl.cost.evaluate import evaluate
from hetrl.cost.model import CostModel
from hetrl.cost.operators import OperatorLibrary
from hetrl.cost.unit import UnitCosts
from hetrl.search.hybrid import solve
from hetrl.spec.job import Job
from hetrl.spec.topology import Link
from tests.helpers.jobs import two_nodes

LINKS = {
    "H100": Link(latency_seconds=1e-4, bytes_per_second=2e9, kind="measured"),
    "L40S": Link(latency_seconds=3e-4, bytes_per_second=5e9, kind="measured"),
}


def one_host() -> Job:
    job = two_nodes()
    return replace(job, topology=type(job.topology)(tuple(replace(node, host="box") for node in job.topology.nodes)))


def test_the_slower_end_decides() -> None:
    job = CostModel(library=OperatorLibrary(), links=LINKS).with_links(one_host())
    link = job.topology.node_link(0, 1)
    assert (link.latency_seconds, link.bytes_per_second, link.kind) == (3e-4, 2e9, "measured")
    assert job.topology.node_link(0, 0) == two_nodes().topology.node_link(0, 0)


def test_other_hosts_and_stated_links_stay() -> None:
    model = CostModel(library=OperatorLibrary(), links=LINKS)
    apart = two_nodes()
    assert model.with_links(apart) is apart
    stated = Link(latency_seconds=1.0, bytes_per_second=1.0)
    job = one_host()
    job = replace(job, topology=replace(job.topology, node_links={(0, 1): stated}))
    assert model.with_links(job).topology.node_link(0, 1) == stated


def test_saved_and_read(tmp_path: Path) -> None:
    CostModel(library=OperatorLibrary.builtin(), links=LINKS).save(tmp_path / "model.json")
    assert CostModel.load(tmp_path / "model.json").links == LINKS


@pytest.mark.parametrize(("links", "expected"), [(LINKS, "measured"), ({}, "datasheet")])
def test_provenance_says_so(links: dict[str, Link], expected: str) -> None:
    model = replace(CostModel.builtin(), links=links)
    job = model.with_links(one_host())
    costs = UnitCosts(model, job.precision)
    plan = solve(replace(job, optimizer=replace(job.optimizer, budget=50)), costs).plan
    assert evaluate(job, plan, costs).provenance["links"] == expected
