"""Datasheet figures of chips as operators see them: peaks from the device type, multiprocessors and cache from data."""

from __future__ import annotations

from collections.abc import Mapping

from hetrl.cost.shipped import read_shipped
from hetrl.cost.work import Chip
from hetrl.errors import Problem, SpecError
from hetrl.spec.devices import DeviceType
from hetrl.units import MIB

TYPICAL_FLOPS_PER_MULTIPROCESSOR = 7.5e12
"""bf16 FLOP/s of one multiprocessor of an H100: stands in where a chip's number of multiprocessors is not known."""
TYPICAL_L2_BYTES = 50 * MIB


def chip_of(device: DeviceType, dtype: str) -> Chip:
    """Figures of a device type for one dtype.

    Raises
    ------
    SpecError
        If the device does not compute in that dtype.
    """
    if not device.supports(dtype):
        raise SpecError(
            Problem(
                path=device.name,
                message=f"does not compute in {dtype}",
                valid=", ".join(sorted(device.flops_per_second)),
            )
        )
    known: Mapping[str, Mapping[str, float]] = read_shipped("chips.yaml")["chips"]
    extra = known.get(device.name, {})
    fastest = max(device.flops_per_second.get("bf16", 0.0), device.flops_per_second.get("fp16", 0.0))
    guess = max(1, round((fastest or device.flops_per_second[dtype]) / TYPICAL_FLOPS_PER_MULTIPROCESSOR))
    return Chip(
        flops_per_second=device.flops_per_second[dtype],
        memory_bytes_per_second=device.memory_bytes_per_second,
        num_multiprocessors=int(extra.get("multiprocessors", guess)),
        l2_bytes=float(extra["l2_MiB"]) * MIB if "l2_MiB" in extra else float(TYPICAL_L2_BYTES),
    )
