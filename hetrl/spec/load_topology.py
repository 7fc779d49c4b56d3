"""The ``cluster_topology`` section of a job file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hetrl.errors import Problem
from hetrl.spec.devices import DeviceType
from hetrl.spec.load_links import LINK_KEYS, read_links
from hetrl.spec.load_node import MAX_NODES, read_node
from hetrl.spec.section import Report, Section
from hetrl.spec.topology import Node, Topology


def read_topology(
    values: object, described: Mapping[str, DeviceType], report: Report, base: Path | None = None
) -> Topology | None:
    """Return the fleet of the ``cluster_topology`` section, None if it has problems."""
    before = len(report.problems)
    section = Section(values, "cluster_topology", report, ("nodes", *LINK_KEYS))
    if values is None:
        return None
    nodes: list[Node] = []
    listing = section.listing("nodes")
    if not listing and len(report.problems) == before:
        report.problem(
            "cluster_topology.nodes", "no nodes", valid="a list of nodes with id, gpus, type and interconnect"
        )
    for index, entry in enumerate(listing):
        nodes.extend(read_node(entry, f"cluster_topology.nodes[{index}]", described, report))
        if len(nodes) > MAX_NODES:
            report.problem("cluster_topology.nodes", "too many nodes", len(nodes), f"at most {MAX_NODES}")
            return None
    if len(report.problems) > before:
        report.problems.extend(_repeated_ids(listing))
        return None
    nodes, links, levels = read_links(section, tuple(nodes), report, base)
    if len(report.problems) > before:
        return None
    return report.attempt(None, Topology, nodes=tuple(nodes), node_links=links, levels=levels)


def _repeated_ids(listing: list[object]) -> list[Problem]:
    """Return nodes with the id of another one, among nodes that may have other problems."""
    ids = [entry.get("id") if isinstance(entry, dict) else None for entry in listing]
    return [
        Problem(path=f"cluster_topology.nodes[{number}].id", message="node id used twice", found=str(name))
        for number, name in enumerate(ids)
        if isinstance(name, str) and name in ids[:number]
    ]
