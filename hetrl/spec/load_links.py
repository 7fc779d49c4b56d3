"""Links between nodes: a default, network levels, single links, a matrix or a measured file."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hetrl.spec.section import Report, Section
from hetrl.spec.topology import LEVELS, Link, Node
from hetrl.spec.yaml_text import read_text
from hetrl.units import parse_bandwidth, parse_seconds

LINK_KEYS = ("links", "link_matrix", "links_file", "network", "rack_uplink")
LINK_FILE_COLUMNS = ("from", "to", "bytes_per_second", "latency_seconds")
Links = dict[tuple[int, int], Link]


def read_links(
    section: Section, nodes: tuple[Node, ...], report: Report, base: Path | None = None
) -> tuple[list[Node], Links, dict[str, Link]]:
    """Return the nodes (with rack uplinks), the links that were given and the link of each network level.

    Where several forms give the same link, a single entry of ``links`` wins over the file, the file over the matrix.
    """
    index = {node.id: number for number, node in enumerate(nodes)}
    links: Links = {}
    read_matrix(section, nodes, links, report)
    read_links_file(section, index, links, report, base)
    for number, entry in enumerate(section.listing("links")):
        read_link(entry, f"{section.path}.links[{number}]", index, links, report)
    levels = read_levels(section, report)
    uplink = section.quantity("rack_uplink", parse_bandwidth, None)
    changed = [
        replace(node, uplink_bytes_per_second=uplink) if uplink and node.uplink_bytes_per_second is None else node
        for node in nodes
    ]
    return changed, links, levels


def read_link(entry: object, path: str, index: Mapping[str, int], links: Links, report: Report) -> None:
    """Read one entry of ``links``: ``between: [a, b]`` for both ways, or ``from`` and ``to`` for one."""
    section = Section(entry, path, report, ("between", "from", "to", "bandwidth", "latency"))
    if section.has("between") == (section.has("from") or section.has("to")):
        report.problem(path, "give either between: [a, b] (both ways) or from: and to: (one way)")
        return
    ends = section.listing("between") if section.has("between") else [section.raw("from"), section.raw("to")]
    if len(ends) != 2 or None in ends or ends[0] == ends[1]:
        report.problem(path, "a link has two different ends", ends)
        return
    unknown = [end for end in ends if not isinstance(end, str) or end not in index]
    for end in unknown:
        report.problem(path, "no node of that id", end, ", ".join(list(index)[:12]))
    bandwidth = section.quantity("bandwidth", parse_bandwidth, None)
    if not section.has("bandwidth"):
        report.problem(section.at("bandwidth"), "missing", valid="a bandwidth such as 100Gbps (one direction)")
    latency = section.quantity("latency", parse_seconds, 30e-6, "30us")
    if unknown or bandwidth is None or latency is None:
        return
    a, b = index[str(ends[0])], index[str(ends[1])]
    link = Link(latency_seconds=latency, bytes_per_second=bandwidth, kind="given")
    links[(a, b)] = link
    if section.has("between"):
        links[(b, a)] = link


def read_matrix(section: Section, nodes: tuple[Node, ...], links: Links, report: Report) -> None:
    """Read ``link_matrix``: bandwidth (and latency) from row node to column node, in the order of ``nodes``."""
    if not section.has("link_matrix"):
        return
    matrix = Section(section.raw("link_matrix"), section.at("link_matrix"), report, ("bandwidth", "latency"))
    bandwidths = _square(matrix, "bandwidth", len(nodes), report)
    latencies = _square(matrix, "latency", len(nodes), report) if matrix.has("latency") else None
    if bandwidths is None:
        return
    for i in range(len(nodes)):
        for j in range(len(nodes)):
            if i == j:
                continue
            where = f"{matrix.path}.bandwidth[{i}][{j}]"
            bandwidth = report.attempt(None, parse_bandwidth, bandwidths[i][j], where)
            latency = 30e-6
            if latencies is not None:
                latency = report.attempt(30e-6, parse_seconds, latencies[i][j], f"{matrix.path}.latency[{i}][{j}]")
            if bandwidth is not None:
                links[(i, j)] = Link(latency_seconds=latency, bytes_per_second=bandwidth, kind="given")


def read_links_file(
    section: Section, index: Mapping[str, int], links: Links, report: Report, base: Path | None
) -> None:
    """Read ``links_file``: a measured CSV table with the columns of `LINK_FILE_COLUMNS`, one direction a row."""
    if not section.has("links_file"):
        return
    where = section.at("links_file")
    name = Path(section.text("links_file"))
    file = name if name.is_absolute() or base is None or os.path.exists(name) else base / name
    text = report.attempt("", read_text, file, "links file")
    rows = csv.DictReader(io.StringIO(text))
    if text and tuple(rows.fieldnames or ()) != LINK_FILE_COLUMNS:
        # Not what stands there: a job file from elsewhere must not show any file of this machine.
        report.problem(f"{where} line 1", "wrong columns", valid=", ".join(LINK_FILE_COLUMNS))
        return
    try:
        for number, row in enumerate(rows, start=2):
            line = f"{where} line {number}"
            ends = [row["from"], row["to"]]
            unknown = [end for end in ends if end not in index]
            if unknown or ends[0] == ends[1]:
                report.problem(
                    line, "a link has two different nodes of the fleet as ends", valid=", ".join(list(index)[:12])
                )
                continue
            figures = [_figure(row[column]) for column in LINK_FILE_COLUMNS[2:]]
            if figures[0] <= 0 or figures[1] < 0:
                report.problem(line, "bandwidth must be above 0 and latency at least 0")
                continue
            link = Link(bytes_per_second=figures[0], latency_seconds=figures[1], kind="measured")
            links[(index[ends[0]], index[ends[1]])] = link
    except csv.Error as error:
        report.problem(f"{where} line {rows.line_num}", f"not a CSV table: {error}")


def _figure(text: str | None) -> float:
    """Return a finite number, -1 for anything else."""
    try:
        value = float(text or "")
    except ValueError:
        return -1.0
    return value if math.isfinite(value) else -1.0


def _square(section: Section, key: str, size: int, report: Report) -> list[list[object]] | None:
    rows = section.listing(key)
    square: list[list[object]] = []
    for row in rows:
        if isinstance(row, list) and len(row) == size:
            square.append(row)
    if len(rows) != size or len(square) != size:
        report.problem(section.at(key), f"must be a {size} x {size} matrix, one row per node", len(rows))
        return None
    return square


def read_levels(section: Section, report: Report) -> dict[str, Link]:
    """Read ``network``: for each level the bandwidth one node reaches there (one direction) and the latency."""
    if not section.has("network"):
        return {}
    network = Section(section.raw("network"), section.at("network"), report, LEVELS)
    levels: dict[str, Link] = {}
    for level in LEVELS:
        if not network.has(level):
            continue
        entry = Section(network.raw(level), network.at(level), report, ("bandwidth", "latency"))
        bandwidth = entry.quantity("bandwidth", parse_bandwidth, None)
        latency = entry.quantity("latency", parse_seconds, 30e-6, "30us")
        if not entry.has("bandwidth"):
            report.problem(entry.at("bandwidth"), "missing", valid="a bandwidth such as 100Gbps (one direction)")
        elif bandwidth is not None and latency is not None:
            levels[level] = Link(latency_seconds=latency, bytes_per_second=bandwidth, kind=level)
    return levels
