"""Facts of accelerators as their drivers' own programs print them: ``nvidia-smi``, ``amd-smi`` or ``rocm-smi``.

They are recorded with every measurement, and say which link joins the devices of a host. Each program is asked once;
a fact that it does not know is absent.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

TIMEOUT_SECONDS = 20
NVIDIA_FACTS = {
    "name": "name",
    "uuid": "uuid",
    "driver": "driver_version",
    "vbios": "vbios_version",
    "memory_MiB": "memory.total",
    "power_limit_W": "power.limit",
    "max_sm_MHz": "clocks.max.sm",
    "max_memory_MHz": "clocks.max.memory",
    "pcie_gen": "pcie.link.gen.max",
    "pcie_width": "pcie.link.width.max",
    "ecc": "ecc.mode.current",
    "mig": "mig.mode.current",
}
"""Name of a fact -> field of ``nvidia-smi --query-gpu``."""
AMD_COMMANDS = (("amd-smi", "static", "--json"), ("rocm-smi", "--showproductname", "--showdriverversion", "--json"))
PCIE_GB_PER_LANE = {"3": 0.985, "4": 1.969, "5": 3.938, "6": 7.563}
"""1e9 bytes per second of one PCIe lane, one direction, after line coding."""


class HostLink(NamedTuple):
    """The link that joins the devices of a host: its name, and bytes per second in one direction (0 if unknown)."""

    name: str
    bytes_per_second: float


def nvidia_facts(index: int) -> dict[str, str]:
    """Facts of one NVIDIA GPU; empty without ``nvidia-smi``."""
    query = ",".join(NVIDIA_FACTS.values())
    text = _output("nvidia-smi", f"--id={index}", f"--query-gpu={query}", "--format=csv,noheader,nounits")
    return parse_nvidia(text)


def parse_nvidia(text: str) -> dict[str, str]:
    """Facts in one line that ``nvidia-smi --query-gpu`` printed for the fields of `NVIDIA_FACTS`."""
    rows = list(csv.reader(io.StringIO(text), skipinitialspace=True))
    if not rows or len(rows[0]) != len(NVIDIA_FACTS):
        return {}
    pairs = zip(NVIDIA_FACTS, rows[0], strict=True)
    return {name: value.strip() for name, value in pairs if value.strip() and not value.strip().startswith("[")}


def amd_facts(index: int) -> dict[str, str]:
    """Facts of one AMD GPU; empty without ``amd-smi`` and ``rocm-smi``."""
    for command in AMD_COMMANDS:
        found = parse_amd(_output(*command), index)
        if found:
            return found
    return {}


def parse_amd(text: str, index: int) -> dict[str, str]:
    """Every single fact about one GPU in the JSON of ``amd-smi static`` (a list) or ``rocm-smi`` (cards by name)."""
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    if isinstance(document, dict):
        document = document.get("gpu_data", [document.get(f"card{index}")])
    cards = [each for each in document if isinstance(each, dict)] if isinstance(document, list) else []
    chosen = next((each for each in cards if each.get("gpu", index) == index), None)
    return dict(_flat("", {key: value for key, value in (chosen or {}).items() if key != "gpu"}))


def _flat(prefix: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        if set(value) == {"value", "unit"}:
            return [(prefix, f"{value['value']} {value['unit']}".strip())]
        return [pair for key, each in value.items() for pair in _flat(f"{prefix}.{key}" if prefix else str(key), each)]
    return [] if value in (None, "", "N/A") or isinstance(value, list) else [(prefix, str(value))]


def host_link(kind: str, index: int, facts: Mapping[str, str]) -> HostLink:
    """Link among the devices of this host: NVLink where it is on, else PCIe; unknown on other vendors' devices."""
    if kind != "cuda":
        return HostLink("intra", 0.0)
    lanes = parse_nvlink(_output("nvidia-smi", "nvlink", "--status", f"--id={index}"))
    if lanes:
        return HostLink("nvlink_intra", sum(lanes))
    per_lane = PCIE_GB_PER_LANE.get(facts.get("pcie_gen", ""))
    if per_lane is None or not facts.get("pcie_width", "").isdigit():
        return HostLink("intra", 0.0)
    return HostLink(f"pcie{facts['pcie_gen']}_intra", per_lane * 1e9 * int(facts["pcie_width"]))


def parse_nvlink(text: str) -> list[float]:
    """Bytes per second and direction of every active link that ``nvidia-smi nvlink --status`` lists."""
    return [float(number) * 1e9 for number in re.findall(r"Link \d+:\s*([\d.]+) GB/s", text)]


def _output(*command: str) -> str:
    """Print of a program; empty if it is missing, fails or hangs: facts are for people, a profile goes on without."""
    return _run(command) if shutil.which(command[0]) else ""


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
