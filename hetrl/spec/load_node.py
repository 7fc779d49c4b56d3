"""One entry of ``cluster_topology.nodes``: what the file gives, and the usual instance's figures for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hetrl import catalog
from hetrl.spec.device_names import MEMORY_TOLERANCE, catalogue_devices, find_device
from hetrl.spec.devices import DeviceType
from hetrl.spec.environment_rules import price_problems
from hetrl.spec.instances import usual_instance
from hetrl.spec.load_interconnect import read_interconnect
from hetrl.spec.section import Report, Section
from hetrl.spec.topology import Node
from hetrl.units import GIB, format_bytes, parse_bandwidth, parse_bytes, parse_seconds

NODE_KEYS = (
    "id", "gpus", "type", "interconnect", "interconnect_latency", "instance", "memory", "host_ram", "cpu_cores",
    "host_link", "host_memory_bandwidth", "network", "network_latency", "rack", "zone", "region", "uplink",
    "usd_per_hour", "nvlink_domain", "host", "count", "topo",
)  # fmt: skip
MAX_DEVICES_PER_NODE = 1024
MAX_NODES = 4096
NETWORK_LATENCY_SECONDS = 30e-6
# Where no cloud instance carries a device: assumptions, each recorded as such.
UNKNOWN_NETWORK_BYTES_PER_SECOND = 12.5e9
UNKNOWN_HOST_RAM_BYTES_PER_DEVICE = 128 * GIB
UNKNOWN_CORES_PER_DEVICE = 8
HOST_MEMORY_BYTES_PER_SECOND_PER_CORE = 2.1e9


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
    instance = read_instance(section)
    if instance is None and section.has("instance"):
        return []
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


def read_instance(section: Section) -> dict[str, Any] | None:
    """Return the catalogue row of the node's ``instance``, None without one or if it is unknown."""
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
    carried = catalogue_devices()[instance["device"]] if instance else None
    if not section.has("type"):
        if carried is None:
            section.missing("type", "a device name, or instance: with a cloud instance")
            return None
        device = carried
        section.assume("type", device.name)
    elif (name := section.text("type")) in described:
        device = described[name]
    else:
        hint = memory if memory is not None else (carried.memory_bytes if carried else None)
        found = report.attempt(None, find_device, name, memory_bytes=hint, path=section.at("type"))
        if found is None:
            return None
        device, warning = found
        if carried is not None and carried.name != device.name:
            where = section.text("instance")
            report.problem(section.at("type"), f"{where} carries {carried.name}", name, carried.name, rule="NODE_SHAPE")
            return None
        if warning:
            report.warnings.append(f"{section.at('type')}: {warning}")
            section.assume("type", device.name)
    if memory is not None and int(memory) != device.memory_bytes:
        if abs(memory / device.memory_bytes - 1) > MEMORY_TOLERANCE:
            device = replace(
                device, name=f"{device.name}@{format_bytes(memory).replace(' ', '')}", memory_bytes=int(memory)
            )
        else:
            device = replace(device, memory_bytes=min(int(memory), device.memory_bytes))
    return device


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
            f"{section.path}: no cloud instance with {device.name} is known; "
            "its host and network figures are assumptions"
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
    if num_cores < num_devices:
        message = f"{num_devices} devices need at least a core each for their workers"
        report.problem(section.at("cpu_cores"), message, num_cores, f"at least {num_devices}", rule="CPU_CORES")
    host_memory = usual.get("host_memory_GBps", 0) * 1e9 if usual else 0.0
    host_memory = host_memory or HOST_MEMORY_BYTES_PER_SECOND_PER_CORE * num_cores
    price = read_price(section, num_devices, usual, report)
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


def read_price(section: Section, num_devices: int, usual: Mapping[str, Any] | None, report: Report) -> float | None:
    """Return dollars per hour: as given, a named instance's, or the usual instance's per device; None if unknown.

    A named instance is paid for as a whole, whatever ``gpus`` says. Where none is named, the usual one only tells what
    a device costs.
    """
    if section.has("usd_per_hour"):
        given = section.number("usd_per_hour", 0.0, minimum=0)
        report.problems.extend(price_problems(given, num_devices, path=section.at("usd_per_hour")))
        return given
    if usual is None or "usd_per_hour" not in usual:
        return None
    whole, count = float(usual["usd_per_hour"]), int(usual["count"])
    if section.has("instance") or count == num_devices:
        section.assume("usd_per_hour", f"{whole} ({usual['name']}, {usual['price']})")
        return whole
    price = whole * num_devices / count
    share = f"{num_devices}/{count} of {usual['name']}, which has {count} devices for {whole}"
    section.assume("usd_per_hour", f"{price:.6g} ({share}, {usual['price']})")
    return price


def _or(value: float | None, fallback: float) -> float:
    return fallback if value is None else value
