"""Copies between host and device memory, from and to pinned host memory as offloading does them.

On a CPU both ends are host memory: what is measured then is a copy within it.
"""

from __future__ import annotations

from hetrl_profiler.device import ProfiledDevice
from hetrl_profiler.points import Point
from hetrl_profiler.timing import Operation

KINDS = ("copy_to_device", "copy_to_host")
SIZES = (2**16, 2**18, 2**20, 2**22, 2**24, 2**26, 2**28)


def copy_points(device: ProfiledDevice, max_bytes: float) -> list[Point]:
    """Both directions, in sizes up to ``max_bytes``."""
    return [
        Point(
            kind=kind,
            amounts={"num_bytes": float(size)},
            prepare=lambda kind=kind, size=size: _copy(device, size, to_device=kind == KINDS[0]),  # type: ignore[misc]
        )
        for size in SIZES
        if size <= max_bytes
        for kind in KINDS
    ]


def _copy(device: ProfiledDevice, num_bytes: int, *, to_device: bool) -> Operation:
    import torch

    host = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=device.kind != "cpu")
    there = torch.ones(num_bytes, dtype=torch.uint8, device=device.torch_device)
    source, target = (host, there) if to_device else (there, host)
    return lambda _: target.copy_(source, non_blocking=True)
