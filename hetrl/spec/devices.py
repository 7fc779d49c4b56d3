"""A device type: what one accelerator (or CPU) can do, in SI units, with a source per figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hetrl.errors import Problem, SpecError

VENDORS = ("nvidia", "amd", "aws", "intel", "google", "cpu", "other")
DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")
DTYPE_BYTES = MappingProxyType({"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """One kind of device.

    Parameters
    ----------
    name
        Exact catalogue name, e.g. ``A100-80GB``.
    vendor
        One of `VENDORS`. Different vendors never share a collective.
    architecture
        E.g. ``sm_90``, ``gfx942``, ``trn2``; empty if unknown.
    flops_per_second
        Dense peak per dtype. A missing dtype is not supported by the device.
    memory_bytes
        Usable memory, as the driver reports it, not the marketed figure.
    memory_bytes_per_second
        Bandwidth of the device memory.
    can_train
        False for devices that only run forward passes (e.g. Inferentia).
    peer_to_peer
        False where the driver refuses direct copies between cards (GeForce): collectives go through the host.
    sources
        Where each figure comes from: field name -> text.
    notes
        Anything a planner of this device should be told.
    """

    name: str
    vendor: str
    architecture: str = ""
    flops_per_second: Mapping[str, float]
    memory_bytes: int
    memory_bytes_per_second: float
    can_train: bool = True
    peer_to_peer: bool = True
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""

    def __post_init__(self) -> None:
        problems = []
        if self.vendor not in VENDORS:
            problems.append(
                Problem(path=self.name, message="unknown vendor", found=self.vendor, valid=", ".join(VENDORS))
            )
        if not self.flops_per_second:
            problems.append(Problem(path=self.name, message="no FLOP/s figure for any dtype", valid=", ".join(DTYPES)))
        for dtype, flops in self.flops_per_second.items():
            if dtype not in DTYPES or not flops > 0:
                problems.append(Problem(path=self.name, message="bad FLOP/s entry", found=f"{dtype}: {flops}"))
        if self.memory_bytes <= 0 or not self.memory_bytes_per_second > 0:
            problems.append(Problem(path=self.name, message="memory size and bandwidth must be positive"))
        if problems:
            raise SpecError(problems)

    def supports(self, dtype: str) -> bool:
        """Whether the device computes in ``dtype``."""
        return dtype in self.flops_per_second
