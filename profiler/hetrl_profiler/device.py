"""The device that is profiled: one core of this machine's CPU, or one GPU.

A CPU device is one core: torch computes with one thread, and the process stays on that core.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetrl.errors import Problem, SpecError
from hetrl.measure import machine_facts
from hetrl.units import MIB
from hetrl_profiler.timing import Clock

if TYPE_CHECKING:
    import torch

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""Set before torch is imported; the workers of a run have the same."""
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
        ``cpu`` or ``cuda``.
    dtype
        Compute dtype, one of `TORCH_DTYPES`.
    max_flops_per_second, max_bytes_per_second
        What physics allows; a faster measurement is a mistake.
    last_level_cache_bytes
        Operands are turned over pools larger than this, so that caches are cold.
    """

    name: str
    kind: str
    dtype: str
    max_flops_per_second: float
    max_bytes_per_second: float
    last_level_cache_bytes: int

    @property
    def torch_device(self) -> str:
        """Torch's name."""
        return self.kind

    @property
    def torch_dtype(self) -> torch.dtype:
        """Torch's dtype."""
        import torch

        found: torch.dtype = getattr(torch, TORCH_DTYPES[self.dtype])
        return found

    def clock(self) -> Clock:
        """Clock that fits the device."""
        if self.kind == "cpu":
            return Clock()
        import torch

        return Clock(synchronize=torch.cuda.synchronize)


def set_environment() -> None:
    """Set what must be set before torch and vLLM are imported."""
    os.environ.update(ENVIRONMENT)


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
    os.sched_setaffinity(0, {allowed[0] if core is None else core})
    return ProfiledDevice(
        name=name or default_cpu_name(),
        kind="cpu",
        dtype=dtype,
        max_flops_per_second=CORE_HERTZ * CORE_FLOPS_PER_CYCLE[dtype],
        max_bytes_per_second=CORE_HERTZ * CORE_BYTES_PER_CYCLE,
        last_level_cache_bytes=last_level_cache_bytes(),
    )


def gpu(index: int, name: str = "", dtype: str = "bf16") -> ProfiledDevice:
    """One GPU that torch sees, under its catalogue name if it has one. Not tried on hardware yet."""
    import torch

    from hetrl.spec.device_names import find_device

    properties: Any = torch.cuda.get_device_properties(index)
    torch.cuda.set_device(index)
    known, _ = find_device(properties.name, memory_bytes=properties.total_memory, path="GPU")
    if dtype not in known.flops_per_second:
        valid = ", ".join(sorted(known.flops_per_second))
        raise SpecError(
            Problem(path="--dtype", message=f"{known.name} does not compute in it", found=dtype, valid=valid)
        )
    return ProfiledDevice(
        name=name or known.name,
        kind="cuda",
        dtype=dtype,
        max_flops_per_second=GPU_CLOCK_MARGIN * known.flops_per_second[dtype],
        max_bytes_per_second=GPU_CLOCK_MARGIN * known.memory_bytes_per_second,
        last_level_cache_bytes=int(getattr(properties, "L2_cache_size", 64 * MIB)),
    )


def default_cpu_name() -> str:
    """Name of this machine's cores as a device type, e.g. ``cpu-amd-epyc``."""
    words = [
        word for word in machine_facts().cpu.lower().replace("(r)", " ").replace("(tm)", " ").split() if word != "cpu"
    ]
    return "-".join(["cpu", *words])


def last_level_cache_bytes() -> int:
    """Largest cache of core 0 as Linux reports it; 32 MiB where it does not."""
    sizes = [32 * MIB]
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = entry.read_text().strip()
        if text.endswith("K") and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes[1:] or sizes)
