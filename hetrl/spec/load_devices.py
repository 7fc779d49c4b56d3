"""The ``device_types`` section of a job file: devices described by their figures."""

from __future__ import annotations

from hetrl.spec.device_names import catalogue_devices, find_device
from hetrl.spec.devices import DTYPES, VENDORS, DeviceType
from hetrl.spec.section import Report, Section
from hetrl.units import parse_bandwidth, parse_bytes, parse_flops

DEVICE_KEYS = ("vendor", "architecture", "flops", "memory", "memory_bandwidth", "can_train", "like", "source", "notes")


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
        if name in catalogue_devices():  # or the catalogue card's measurements would stand for another device
            report.problem(path, "is a device of the catalogue", name, f"another name, with `like: {name}`")
            continue
        device = report.attempt(None, _described_device, name, section)
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
        rate = parse_flops(given, section.at("flops"))
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
