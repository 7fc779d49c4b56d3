"""What a profile says about a device as a whole: its slow-down, its peaks, and itself as a device type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hetrl.cost.work import DIMENSIONS, Chip, work_of
from hetrl.errors import Problem, SpecError
from hetrl.measure import Measurement
from hetrl.spec.devices import DTYPE_BYTES, DeviceType
from hetrl.units import MIB
from hetrl_profiler.recorder import PROFILE

OPERATORS = ("gemm", "attention_prefill", "attention_decode", "memory", "memory_norm")
NETWORK = "network"
"""Label ``link`` of what was measured between nodes."""
VENDORS = {"cpu": "cpu", "cuda": "nvidia", "rocm": "amd"}
"""Kind of a profiled device -> vendor."""
ALONE = 1.1
"""Seconds that a CPU second takes at most on a core that is nobody else's."""
CPU_CACHE_BYTES = 32.0 * MIB
_UNIT = Chip(flops_per_second=1.0, memory_bytes_per_second=1.0, num_multiprocessors=1, l2_bytes=1.0)


def is_profile(measurement: Measurement) -> bool:
    """Whether it comes from `hetrl profile`, not from a run."""
    return measurement.labels.get("source") == PROFILE


def slowdowns(measurements: Iterable[Measurement]) -> dict[str, float]:
    """Profiled device type -> factor from its busy to wall time: the median over all its measurements.

    Each block has its own, taken over a few seconds; what slows a device for good shows in all of them, what happens
    by the way does not.
    """
    factors: dict[str, list[float]] = {}
    for each in measurements:
        if is_profile(each) and "slowdown" in each.measured:
            factors.setdefault(each.device_type, []).append(each.measured["slowdown"])
    return {device: float(np.median(values)) for device, values in factors.items()}


def slowdown_lines(measurements: Sequence[Measurement]) -> list[str]:
    """Say of every profiled CPU device how long a CPU second took, and what that means for the figures."""
    cpus = {each.device_type for each in measurements if each.labels.get("device_kind") == "cpu"}
    lines = []
    for device, factor in slowdowns(measurements).items():
        if device in cpus:
            line = f"{device}: a CPU second took {factor:.2f} s while it was profiled"
            if factor > ALONE:
                line += "; a quota or other programs slow it, and what is predicted of it counts on that"
            lines.append(line)
    return lines


def evened(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Give all profile measurements of a device one factor from busy to wall time, its `slowdowns`."""
    pooled = slowdowns(measurements)
    return [
        replace(each, measured={**each.measured, "seconds": each.measured["busy_seconds"] * pooled[each.device_type]})
        if is_profile(each) and "slowdown" in each.measured
        else each
        for each in measurements
    ]


def device_from_profile(name: str, dtypes: Sequence[str], measurements: Sequence[Measurement]) -> DeviceType:
    """Device type with the highest rates measured as its peaks; dtypes without matrix products are left out.

    Raises
    ------
    SpecError
        If matrix products or memory-bound operators were not measured.
    """
    own = [each for each in measurements if each.device_type == name and each.labels.get("dtype") in dtypes]
    flops = {
        dtype: max(_rate(each, "gemm", dtype, "flops") for each in products)
        for dtype in dtypes
        if (products := [each for each in own if each.kind == "gemm" and each.labels["dtype"] == dtype])
    }
    memory = max((each.amounts["bytes"] / each.seconds for each in own if each.kind == "memory"), default=0.0)
    if not flops or not memory:
        raise SpecError(
            Problem(
                path=name,
                message=f"no matrix products or memory-bound operators of {', '.join(dtypes)} among the measurements",
                valid="a profile with its stage 'operators', or a job file that describes the device",
            )
        )  # fmt: skip
    machine = own[0].machine
    return DeviceType(
        name=name,
        vendor=VENDORS[own[0].labels.get("device_kind", "cpu")],
        flops_per_second=flops,
        memory_bytes=int(machine.accelerator.get("memory_bytes", machine.memory_bytes // max(1, machine.num_cores))),
        memory_bytes_per_second=memory,
        sources={"*": f"profile of {own[-1].date[:10]}, {machine.cpu}"},
    )


def chip_from_profile(device: DeviceType, dtype: str, facts: Mapping[str, str]) -> Chip:
    """Return the device type as operators see it; a CPU device is one core."""
    return Chip(
        flops_per_second=device.flops_per_second[dtype],
        memory_bytes_per_second=device.memory_bytes_per_second,
        num_multiprocessors=int(facts.get("multiprocessors", 1)),
        l2_bytes=float(facts.get("l2_bytes", CPU_CACHE_BYTES)),
    )


def _rate(measurement: Measurement, operator: str, dtype: str, what: str) -> float:
    dims = np.array([[measurement.amounts[name]] for name in DIMENSIONS[operator]])
    return float(getattr(work_of(operator, dims, DTYPE_BYTES[dtype], _UNIT), what).item() / measurement.seconds)
