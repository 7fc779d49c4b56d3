"""The ``device_types`` and ``cluster_topology`` sections of a job file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hetrl import catalog
from hetrl.errors import Problem, SpecError
from hetrl.spec.device_names import catalogue_devices, find_device
from hetrl.spec.devices import DTYPES, VENDORS, DeviceType
from hetrl.spec.load_links import LINK_KEYS, read_links
from hetrl.spec.section import Report, Section
from hetrl.spec.topo_text import parse_topo
from hetrl.spec.topology import Link, Node, Topology
from hetrl.units import GIB, format_bytes, parse_bandwidth, parse_bytes, parse_flops, parse_seconds

DEVICE_KEYS = ("vendor", "architecture", "flops", "memory", "memory_bandwidth", "can_train", "like", "source", "notes")
NODE_KEYS = (
    "id", "gpus", "type", "interconnect", "interconnect_latency", "instance", "memory", "host_ram", "cpu_cores", "host_link",
    "host_memory_bandwidth", "network", "network_latency", "rack", "zone", "region", "uplink", "usd_per_hour", "nvlink_domain", "host", "count", "topo",
)  # fmt: skip
MAX_DEVICES_PER_NODE = 1024
MAX_NODES = 4096
NETWORK_LATENCY_SECONDS = 30e-6
# Where no cloud instance carries a device: assumptions, each recorded as such.
UNKNOWN_NETWORK_BYTES_PER_SECOND = 12.5e9
UNKNOWN_HOST_RAM_BYTES_PER_DEVICE = 128 * GIB
UNKNOWN_CORES_PER_DEVICE = 8
HOST_MEMORY_BYTES_PER_SECOND_PER_CORE = 2.1e9
_BOTH_DIRECTIONS = re.compile(
    r"(?:nvlink|infinityfabric|infinity-fabric|xgmi|neuronlink)-?(\d+(?:\.\d+)?)G(?:B/s)?", re.IGNORECASE
)


def read_device_types(values: object, report: Report) -> dict[str, DeviceType]:
    """Return the device types that a job describes itself, by name."""
    if values is None:
        return {}
    if not isinstance(values, dict):
        report.problem("device_types", "must be a mapping from a name to its figures", values)
        return {}
    made: dict[str, DeviceType] = {}
    for name, entry in values.items():
        path = f"device_types.{name}"
        section = Section(entry, path, report, DEVICE_KEYS)
        device = report.attempt(lambda: _described_device(name, section), None)  # noqa: B023 (called at once)
        if device is not None:
            made[name] = device
    return made


def _described_device(name: str, section: Section) -> DeviceType | None:
    problems_before = len(section.report.problems)
    base = find_device(section.text("like"), path=section.at("like"))[0] if section.has("like") else None
    flops: dict[str, float] = dict(base.flops_per_second) if base else {}
    given = section.raw("flops")
    if isinstance(given, dict):
        for dtype, value in given.items():
            if dtype not in DTYPES:
                section.report.problem(section.at(f"flops.{dtype}"), "unknown dtype", dtype, ", ".join(DTYPES))
            else:
                flops[dtype] = parse_flops(value, section.at(f"flops.{dtype}"))
    elif given is not None:
        rate = parse_flops(given, section.at("flops"))  # type: ignore[arg-type]
        flops.update({"bf16": rate, "fp16": rate})
    memory = section.quantity("memory", parse_bytes, base.memory_bytes if base else None)
    bandwidth = section.quantity("memory_bandwidth", parse_bandwidth, base.memory_bytes_per_second if base else None)
    for key, value in (("flops", flops), ("memory", memory), ("memory_bandwidth", bandwidth)):
        if not value and len(section.report.problems) == problems_before:
            section.report.problem(
                section.at(key), "missing: a device is described by flops, memory and memory_bandwidth"
            )
    if len(section.report.problems) > problems_before or not memory or not bandwidth:
        return None
    return DeviceType(
        name=name,
        vendor=section.text("vendor", base.vendor if base else "other", choices=VENDORS),
        architecture=section.text("architecture", base.architecture if base else ""),
        flops_per_second=flops,
        memory_bytes=int(memory),
        memory_bytes_per_second=bandwidth,
        can_train=section.flag("can_train", base.can_train if base else True),
        sources={"*": section.text("source") or "job file"},
        notes=section.text("notes"),
    )


def read_topology(
    values: object, described: Mapping[str, DeviceType], report: Report, base: Path | None = None
) -> Topology | None:
    """Return the fleet of the ``cluster_topology`` section, None if it has problems."""
    before = len(report.problems)
    section = Section(values, "cluster_topology", report, ("nodes", *LINK_KEYS))
    if values is None:
        report.problem("cluster_topology", "missing", valid="a mapping with nodes:")
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
        return None
    nodes, links, levels = read_links(section, tuple(nodes), report, base)
    if len(report.problems) > before:
        return None
    return report.attempt(lambda: Topology(nodes=tuple(nodes), node_links=links, levels=levels), None)


def read_node(entry: object, path: str, described: Mapping[str, DeviceType], report: Report) -> list[Node]:
    """Return the node of one list entry, several with numbered ids where it has ``count``."""
    before = len(report.problems)
    section = Section(
        entry,
        path,
        report,
        NODE_KEYS,
        renamed=(
            ("devices", "did you mean 'gpus'?"),
            ("num_gpus", "did you mean 'gpus'?"),
            ("gpu_type", "did you mean 'type'?"),
        ),
    )
    name = section.text("id", required=True)
    repeat = section.count("count", 1, maximum=MAX_NODES) if section.has("count") else 1
    instance = read_instance(section, report)
    if instance:
        num_devices = section.count("gpus", int(instance["count"]), maximum=MAX_DEVICES_PER_NODE)
        if num_devices > instance["count"]:
            report.problem(
                section.at("gpus"),
                f"{section.raw('instance')} has {instance['count']} devices",
                num_devices,
                f"1 to {instance['count']}",
                rule="NODE_SHAPE",
            )
    else:
        num_devices = section.count("gpus", None, maximum=MAX_DEVICES_PER_NODE)
    device = read_device(section, instance, described, report)
    if device is None or len(report.problems) > before:
        return []
    node = describe_node(section, name, num_devices, device, instance, report)
    if node is None or len(report.problems) > before:
        return []
    if repeat == 1:
        return [node]
    width = len(str(repeat - 1))
    return [replace(node, id=f"{node.id}-{number:0{width}d}") for number in range(repeat)]


def read_instance(section: Section, report: Report) -> dict[str, Any] | None:
    """Return the catalogue row of the node's ``instance``."""
    if not section.has("instance"):
        return None
    instances = catalog.read("instances.yaml")
    name = section.text("instance", choices=tuple(instances))
    return {"name": name, **instances[name]} if name in instances else None


def read_device(
    section: Section, instance: Mapping[str, Any] | None, described: Mapping[str, DeviceType], report: Report
) -> DeviceType | None:
    """Return the node's device type: from ``type``, else from its instance; ``memory`` replaces the catalogue's."""
    memory = section.quantity("memory", parse_bytes, None)
    if not section.has("type"):
        if instance is None:
            report.problem(section.at("type"), "missing", valid="a device name, or instance: with a cloud instance")
            return None
        device = catalogue_devices()[instance["device"]]
        section.assume("type", device.name)
    else:
        name = section.text("type")
        if name in described:
            device = described[name]
        else:
            by_instance = catalogue_devices()[instance["device"]] if instance else None
            hint = memory if memory is not None else (by_instance.memory_bytes if by_instance else None)
            found = report.attempt(lambda: find_device(name, memory_bytes=hint, path=section.at("type")), None)
            if found is None:
                return None
            device, warning = found
            if by_instance is not None and by_instance.name != device.name:
                report.problem(
                    section.at("type"),
                    f"{instance['name']} carries {by_instance.name}",
                    name,
                    by_instance.name,
                    rule="NODE_SHAPE",
                )  # type: ignore[index]
                return None
            if warning:
                report.warnings.append(f"{section.at('type')}: {warning}")
                section.assume("type", device.name)
    if memory is not None and int(memory) != device.memory_bytes:
        if abs(memory / device.memory_bytes - 1) > 0.12:
            device = replace(
                device, name=f"{device.name}@{format_bytes(memory).replace(' ', '')}", memory_bytes=int(memory)
            )
        else:
            device = replace(device, memory_bytes=min(int(memory), device.memory_bytes))
    return device


def usual_instance(device: DeviceType, num_devices: int) -> dict[str, Any] | None:
    """Return the usual cloud instance with that device and count, else the next larger (else the largest) one."""
    rows = [
        {"name": name, **row}
        for name, row in catalog.read("instances.yaml").items()
        if row["device"] == device.name.split("@")[0]
    ]
    if not rows:
        return None
    return next((row for row in rows if row["count"] == num_devices), None) or min(
        rows, key=lambda row: (row["count"] < num_devices, abs(row["count"] - num_devices))
    )


def describe_node(
    section: Section,
    name: str,
    num_devices: int,
    device: DeviceType,
    instance: Mapping[str, Any] | None,
    report: Report,
) -> Node | None:
    """Return the node with every figure that the file does not give taken from the usual instance, as assumed."""
    usual = instance or usual_instance(device, num_devices)
    source = "" if usual is None else f" ({usual['name']})"
    if usual is None and device.vendor != "cpu":
        report.warnings.append(
            f"{section.path}: no cloud instance with {device.name} is known; its host and network figures are assumptions"
        )
    cores = usual["vcpus"] if usual else UNKNOWN_CORES_PER_DEVICE * num_devices
    ram = (
        usual["host_ram_GiB"] * GIB
        if usual
        else (device.memory_bytes if device.vendor == "cpu" else UNKNOWN_HOST_RAM_BYTES_PER_DEVICE) * num_devices
    )
    nic = usual["network_Gbps"] / 8 * 1e9 if usual else UNKNOWN_NETWORK_BYTES_PER_SECOND
    pcie = catalog.read("interconnects.yaml")[f"PCIe-Gen{usual['pcie_gen'] if usual else 4}"]
    host_link = device.memory_bytes_per_second if device.vendor == "cpu" else pcie["GBps"] * 1e9
    num_cores = section.count("cpu_cores", cores)
    host_memory = usual.get("host_memory_GBps", 0) * 1e9 if usual else 0.0
    host_memory = host_memory or HOST_MEMORY_BYTES_PER_SECOND_PER_CORE * num_cores
    price = (
        section.number("usd_per_hour", 0.0, minimum=1e-6)
        if section.has("usd_per_hour")
        else (usual.get("usd_per_hour") if usual else None)
    )
    if price is not None and not section.has("usd_per_hour"):
        section.assume("usd_per_hour", f"{price} ({usual['price']})" if usual else price)
    intra = read_interconnect(section, device, num_devices, report)
    if intra is None:
        return None
    return Node(
        id=name,
        device_type=device,
        num_devices=num_devices,
        intra_link=intra,
        nic_bytes_per_second=section.quantity("network", parse_bandwidth, nic, f"{nic * 8 / 1e9:g}Gbps{source}") or nic,
        network_latency_seconds=_or(
            section.quantity("network_latency", parse_seconds, NETWORK_LATENCY_SECONDS, "30us"), NETWORK_LATENCY_SECONDS
        ),
        host_ram_bytes=int(section.quantity("host_ram", parse_bytes, ram, format_bytes(ram) + source) or ram),
        cpu_cores=num_cores,
        host_link_bytes_per_second=section.quantity(
            "host_link", parse_bandwidth, host_link, f"{host_link / 1e9:g}GB/s{source}"
        )
        or host_link,
        host_memory_bytes_per_second=section.quantity(
            "host_memory_bandwidth", parse_bandwidth, host_memory, f"{host_memory / 1e9:g}GB/s{source}"
        )
        or host_memory,
        rack=section.text("rack"),
        zone=section.text("zone"),
        region=section.text("region"),
        uplink_bytes_per_second=section.quantity("uplink", parse_bandwidth, None),
        usd_per_hour=price,
        instance=str(instance["name"]) if instance else "",
        nvlink_domain=section.text("nvlink_domain"),
        host=section.text("host"),
    )


def _or(value: float | None, fallback: float) -> float:
    return fallback if value is None else value


def read_interconnect(section: Section, device: DeviceType, num_devices: int, report: Report) -> Link | None:
    """Return the link between two devices of the node, one direction.

    ``NVLink-900G`` names both directions together, as the vendor does: 450e9 byte/s each way. A plain bandwidth such
    as ``50GB/s`` or ``400Gbps`` is one direction.
    """
    table = catalog.read("interconnects.yaml")
    entry = catalog.read("devices.yaml").get(device.name.split("@")[0], {}).get("link")
    if section.has("topo"):
        return report.attempt(lambda: _topo_link(section, device, num_devices, report), None)
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
    else:
        kind = section.text("interconnect")
        named = interconnect_named(kind)
        if named is not None:
            bandwidth, latency = named
        else:
            found = report.attempt(lambda: _plain_bandwidth(kind, section.at("interconnect")), None)
            if found is None:
                return None
            bandwidth, latency = found, 10e-6
    latency = _or(section.quantity("interconnect_latency", parse_seconds, None), latency)
    return Link(latency_seconds=latency, bytes_per_second=bandwidth, kind=kind)


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
            f"{section.at('topo')}: NVLink joins groups of {sizes} only; the node is planned with its slowest link ({slowest.kind})"
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


def _plain_bandwidth(text: str, path: str) -> float:
    try:
        return parse_bandwidth(text, path)
    except SpecError:
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
