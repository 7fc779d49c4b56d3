"""The link between two devices of a node: named, as a bandwidth, from ``nvidia-smi topo -m``, or the usual one."""

from __future__ import annotations

import re
from typing import Any

from hetrl import catalog
from hetrl.errors import Problem, SpecError
from hetrl.spec.devices import DeviceType
from hetrl.spec.instances import usual_instance
from hetrl.spec.section import Report, Section
from hetrl.spec.topo_text import parse_topo
from hetrl.spec.topology import Link
from hetrl.units import parse_bandwidth, parse_seconds

_BOTH_DIRECTIONS = re.compile(
    r"(?:nvlink|infinityfabric|infinity-fabric|xgmi|neuronlink)-?(\d+(?:\.\d+)?)G(?:B/s)?", re.IGNORECASE
)
_FAMILIES = {"nvlink": "nvlink", "xgmi": "infinity", "infinity": "infinity", "neuronlink": "neuronlink"}
"""First word of a family's name -> first word of the catalogue's kinds of link."""


def read_interconnect(section: Section, device: DeviceType, num_devices: int, report: Report) -> Link | None:
    """Return the link between two devices of the node, one direction.

    ``NVLink-900G`` names both directions together, as the vendor does: 450e9 byte/s each way. A plain bandwidth such
    as ``50GB/s`` or ``400Gbps`` is one direction.
    """
    table = catalog.read("interconnects.yaml")
    entry = catalog.read("devices.yaml").get(device.name.split("@")[0], {}).get("link")
    if section.has("topo"):
        return report.attempt(None, _topo_link, section, device, num_devices, report)
    if not section.has("interconnect"):
        if device.vendor == "cpu":
            kind, bandwidth, latency = (
                "Loopback",
                table["Loopback"]["GBps"] * 1e9,
                table["Loopback"]["latency_us"] * 1e-6,
            )
        elif entry and "pairs only" not in entry["kind"]:
            kind, bandwidth, latency = str(entry["kind"]), entry["GBps"] * 1e9, 5e-6
        else:
            kind, bandwidth, latency = (
                "PCIe-Gen4",
                table["PCIe-Gen4"]["GBps"] * 1e9,
                table["PCIe-Gen4"]["latency_us"] * 1e-6,
            )
        if num_devices > 1:
            section.assume("interconnect", f"{bandwidth / 1e9:g}GB/s ({kind})")
    elif not isinstance(section.raw("interconnect"), str):
        number = section.quantity("interconnect", parse_bandwidth, None)
        if number is None:
            return None
        kind, bandwidth, latency = "given", number, 10e-6
    else:
        kind = section.text("interconnect")
        if not kind:
            return None
        named = interconnect_named(kind)
        if named is None and entry and _family(kind) and _family(str(entry["kind"])) == _family(kind):
            named = entry["GBps"] * 1e9, 5e-6
            section.assume("interconnect", f"{entry['GBps']:g}GB/s ({entry['kind']})")
        if named is not None:
            bandwidth, latency = named
        else:
            found = report.attempt(None, _plain_bandwidth, kind, section.at("interconnect"), device, entry)
            if found is None:
                return None
            bandwidth, latency = found, 10e-6
    own = section.quantity("interconnect_latency", parse_seconds, None)
    return Link(latency_seconds=latency if own is None else own, bytes_per_second=bandwidth, kind=kind)


def _topo_link(section: Section, device: DeviceType, num_devices: int, report: Report) -> Link | None:
    matrix = parse_topo(section.text("topo"), section.at("topo"))
    if section.has("interconnect"):
        report.problem(section.at("interconnect"), "give interconnect or topo, not both", section.raw("interconnect"))
    if len(matrix.gpus) != num_devices:
        report.problem(
            section.at("topo"),
            f"shows {len(matrix.gpus)} GPUs, the node has {num_devices}",
            len(matrix.gpus),
            rule="NODE_SHAPE",
        )
        return None
    usual = usual_instance(device, num_devices)
    slowest = matrix.slowest_link(device, f"PCIe-Gen{usual['pcie_gen'] if usual else 4}")
    groups = matrix.nvlink_groups
    if 1 < len(groups) < num_devices:
        sizes = ", ".join(str(len(group)) for group in groups)
        report.warnings.append(
            f"{section.at('topo')}: NVLink joins groups of {sizes} only; "
            f"the node is planned with its slowest link ({slowest.kind})"
        )
    return slowest


def interconnect_named(text: str) -> tuple[float, float] | None:
    """Return bytes/s in one direction and latency of a named interconnect, None if the name is unknown.

    >>> interconnect_named("NVLink-900G")
    (450000000000.0, 5e-06)
    """
    table = {name.casefold(): row for name, row in catalog.read("interconnects.yaml").items() if "GBps" in row}
    folded = re.sub(r"[\s_]+", "-", text.strip()).casefold()
    folded = re.sub(r"^pcie-?(?:gen-?)?([3-6])(?:\.0)?(?:-?x16)?$", r"pcie-gen\1", folded)
    if folded in table:
        return table[folded]["GBps"] * 1e9, table[folded]["latency_us"] * 1e-6
    match = _BOTH_DIRECTIONS.fullmatch(folded)
    if match and float(match[1]) > 0:
        return float(match[1]) * 1e9 / 2, 5e-6
    return None


def _family(text: str) -> str | None:
    """Return the vendor's family of links that a name without a figure belongs to: ``xGMI``, ``NVLink``, ...

    >>> _family("Infinity Fabric"), _family("NeuronLink-v3"), _family("PCIe-Gen4")
    ('infinity', 'neuronlink', None)
    """
    folded = text.strip().casefold()
    return next((family for word, family in _FAMILIES.items() if folded.startswith(word)), None)


def _plain_bandwidth(text: str, path: str, device: DeviceType, entry: dict[str, Any] | None) -> float:
    try:
        return parse_bandwidth(text, path)
    except SpecError:
        if _family(text) and entry:
            own = f"{device.name} has {entry['kind']}: leave the key out, or give a bandwidth such as 50GB/s"
            raise SpecError(
                Problem(path=path, message=f"not a link of {device.name}", found=text, valid=own, rule="LINK")
            ) from None
        names = ", ".join(name for name, row in catalog.read("interconnects.yaml").items() if "GBps" in row)
        raise SpecError(
            Problem(
                path=path,
                message="unknown interconnect",
                found=text,
                valid=f"NVLink-900G (both directions), 450GB/s (one direction), or one of {names}",
                rule="LINK",
            )
        ) from None
