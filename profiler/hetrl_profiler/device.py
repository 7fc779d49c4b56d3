"""The device that is profiled: one core of this machine's CPU, or one GPU (NVIDIA, or AMD with torch's HIP build).

A CPU device is one core: torch computes with one thread, and the process stays on that core. Torch calls AMD's devices
``cuda`` too; only what drivers are asked differs. The GPU part has not run on hardware yet.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetrl.errors import Problem, SpecError
from hetrl.measure import machine_facts
from hetrl.measure.worker_environment import WORKER_ENVIRONMENT
from hetrl.units import MIB
from hetrl_profiler.accelerators import amd_facts, nvidia_facts
from hetrl_profiler.timing import Clock, EventClock

if TYPE_CHECKING:
    import torch

TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# No core multiplies more than two 512-bit vectors per cycle, moves more than 128 bytes to and from its first-level
# cache per cycle, or runs faster than 6 GHz.
CORE_HERTZ = 6e9
CORE_FLOPS_PER_CYCLE = {"fp32": 64.0, "bf16": 2048.0, "fp16": 2048.0}  # bf16 and fp16: matrix units
CORE_BYTES_PER_CYCLE = 128.0
GPU_CLOCK_MARGIN = 1.1


@dataclass(frozen=True, kw_only=True)
class ProfiledDevice:
    """What is profiled.

    Parameters
    ----------
    name
        Device type under which everything is recorded.
    kind
        ``cpu``, ``cuda`` or ``rocm``.
    dtype
        Compute dtype, one of `TORCH_DTYPES`.
    max_flops_per_second, max_bytes_per_second
        What physics allows; a faster measurement is a mistake.
    last_level_cache_bytes
        Operands are turned over pools larger than this, so that caches are cold.
    index
        Number of the core or GPU.
    facts
        What the driver says of it.
    """

    name: str
    kind: str
    dtype: str
    max_flops_per_second: float
    max_bytes_per_second: float
    last_level_cache_bytes: int
    index: int = 0
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def torch_device(self) -> str:
        """Torch's name."""
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    @property
    def torch_dtype(self) -> torch.dtype:
        """Torch's dtype."""
        import torch

        found: torch.dtype = getattr(torch, TORCH_DTYPES[self.dtype])
        return found

    def clock(self, *, single_kernels: bool = False) -> Clock:
        """Clock that fits the device; for single kernels an accelerator's own events, with cold caches."""
        if self.kind == "cpu":
            return Clock()
        import torch

        if not single_kernels:
            return Clock(synchronize=torch.cuda.synchronize)
        scratch = torch.empty(2 * self.last_level_cache_bytes, dtype=torch.int8, device=self.torch_device)
        return EventClock(
            synchronize=torch.cuda.synchronize,
            event=lambda: torch.cuda.Event(enable_timing=True),  # type: ignore[no-untyped-call]
            overwrite=scratch.zero_,
        )


def set_environment() -> None:
    """Set what must be set before torch and vLLM are imported."""
    os.environ.update({**WORKER_ENVIRONMENT, "VLLM_LOGGING_LEVEL": "ERROR"})


def cpu_core(name: str, dtype: str = "fp32", core: int | None = None) -> ProfiledDevice:
    """Pin this process to one core and return it as a device.

    Parameters
    ----------
    core
        Which one; None takes the first that this process may use.

    Raises
    ------
    SpecError
        If this process may not use that core, or the dtype is unknown.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if core is not None and core not in allowed:
        raise SpecError(
            Problem(path="--core", message="not usable", found=str(core), valid=", ".join(map(str, allowed)))
        )
    if dtype not in TORCH_DTYPES:
        raise SpecError(Problem(path="--dtype", message="unknown", found=dtype, valid=", ".join(TORCH_DTYPES)))
    chosen = allowed[0] if core is None else core
    os.sched_setaffinity(0, {chosen})
    return ProfiledDevice(
        name=name or default_cpu_name(),
        kind="cpu",
        dtype=dtype,
        max_flops_per_second=CORE_HERTZ * CORE_FLOPS_PER_CYCLE[dtype],
        max_bytes_per_second=CORE_HERTZ * CORE_BYTES_PER_CYCLE,
        last_level_cache_bytes=last_level_cache_bytes(),
        index=chosen,
    )


def gpu_kinds() -> list[list[int]]:
    """Numbers of the GPUs that torch sees, those of one kind together."""
    import torch

    kinds: dict[tuple[str, int], list[int]] = {}
    for index in range(torch.cuda.device_count()):
        properties: Any = torch.cuda.get_device_properties(index)
        kinds.setdefault((properties.name, properties.total_memory), []).append(index)
    return list(kinds.values())


def gpu(index: int, name: str = "", dtype: str | None = None) -> ProfiledDevice:
    """One GPU that torch sees, under its catalogue name if it has one, else under its own.

    Parameters
    ----------
    dtype
        None takes bf16, or fp16 where the device lacks it.

    Raises
    ------
    SpecError
        If it does not compute in the dtype.
    """
    import torch

    from hetrl.spec.device_names import find_device

    properties: Any = torch.cuda.get_device_properties(index)
    torch.cuda.set_device(index)
    try:
        known, _ = find_device(properties.name, memory_bytes=properties.total_memory, path="GPU")
    except SpecError:  # new hardware: the highest rates measured become its peaks
        rates, memory, default = dict.fromkeys(TORCH_DTYPES, math.inf), math.inf, _slug(properties.name)
    else:
        rates, memory, default = dict(known.flops_per_second), known.memory_bytes_per_second, known.name
    if dtype is None:
        dtype = "bf16" if "bf16" in rates else "fp16"
    if dtype not in rates or dtype not in TORCH_DTYPES:
        valid = ", ".join(sorted(set(rates) & set(TORCH_DTYPES)))
        raise SpecError(Problem(path="--dtype", message=f"{default} does not compute in it", found=dtype, valid=valid))
    kind = "rocm" if torch.version.hip else "cuda"
    cache = int(getattr(properties, "L2_cache_size", 64 * MIB))
    return ProfiledDevice(
        name=name or default,
        kind=kind,
        dtype=dtype,
        index=index,
        max_flops_per_second=GPU_CLOCK_MARGIN * rates[dtype],
        max_bytes_per_second=GPU_CLOCK_MARGIN * memory,
        last_level_cache_bytes=cache,
        facts={
            **(amd_facts(index) if kind == "rocm" else nvidia_facts(index)),
            "torch_name": str(properties.name),
            "memory_bytes": str(properties.total_memory),
            "multiprocessors": str(properties.multi_processor_count),
            "l2_bytes": str(cache),
        },
    )


def default_cpu_name() -> str:
    """Name of this machine's cores as a device type, e.g. ``cpu-amd-epyc``."""
    return f"cpu-{_slug(machine_facts().cpu)}"


def _slug(text: str) -> str:
    words = text.lower().replace("(r)", " ").replace("(tm)", " ").split()
    return "-".join(word for word in words if word != "cpu")


def last_level_cache_bytes() -> int:
    """Largest cache of core 0 as Linux reports it; 32 MiB where it does not."""
    sizes = [32 * MIB]
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = entry.read_text().strip()
        if text.endswith("K") and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes[1:] or sizes)
