"""List or describe the device types and cloud instances that hetrl knows.

With a NAME (a catalogue name, an alias or what a driver prints) every figure of that device is shown with its source;
--list reads the output of `nvidia-smi -L` and names what it lists.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hetrl import catalog
from hetrl.cost.operators import OperatorLibrary
from hetrl.errors import EXIT_OK
from hetrl.spec.device_names import catalogue_devices, find_device
from hetrl.spec.devices import DeviceType
from hetrl.spec.topo_text import parse_device_list
from hetrl.spec.yaml_text import read_text
from hetrl.tools.cli import run_command
from hetrl.units import GIB, format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``hetrl devices``."""
    parser.add_argument("name", nargs="?", help="describe one device")
    parser.add_argument("--instances", action="store_true", help="list cloud instances instead")
    parser.add_argument("--list", metavar="FILE", help="read the output of `nvidia-smi -L` ('-' for standard input)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def as_dict(device: DeviceType) -> dict[str, object]:
    """Return every figure of a device, in SI units."""
    return {
        "name": device.name,
        "vendor": device.vendor,
        "architecture": device.architecture,
        "flops_per_second": dict(device.flops_per_second),
        "memory_bytes": device.memory_bytes,
        "memory_bytes_per_second": device.memory_bytes_per_second,
        "link_bytes_per_second": link_of(device)[0],
        "link": link_of(device)[1],
        "can_train": device.can_train,
        "peer_to_peer": device.peer_to_peer,
        "sources": dict(device.sources),
        "notes": device.notes,
    }


def run(args: argparse.Namespace) -> int:
    """Print the catalogue, one device, or what a listing names."""
    if args.list:
        text = sys.stdin.read(1_000_000) if args.list == "-" else read_text(Path(args.list), "listing")
        devices = [listed.type for listed in parse_device_list(text)]
    elif args.name:
        device, warning = find_device(args.name, path="NAME")
        if warning:
            print(f"warning: {warning}", file=sys.stderr)
        devices = [device]
    elif args.instances:
        return print_instances(as_json=args.json)
    else:
        devices = list(catalogue_devices().values())
    if args.json:
        print(json.dumps([as_dict(device) for device in devices], indent=2))
    elif args.name:
        print_one(devices[0])
    else:
        print(f"{'name':<28} {'vendor':<7} {'arch':<14} {'bf16 TFLOP/s':>12} {'fp8':>7} {'memory GiB':>10} {'GB/s':>6}")
        for device in devices:
            rates = [device.flops_per_second.get(dtype) for dtype in ("bf16", "fp8")]
            bf16, fp8 = (f"{rate / 1e12:.5g}" if rate else "-" for rate in rates)
            print(
                f"{device.name:<28} {device.vendor:<7} {device.architecture:<14} {bf16:>12} {fp8:>7} "
                f"{device.memory_bytes / GIB:>10.2f} {device.memory_bytes_per_second / 1e9:>6.0f}"
            )
    return EXIT_OK


def print_one(device: DeviceType) -> None:
    """Print one device, a figure a line with its source."""
    sources = device.sources
    rates = ", ".join(f"{dtype} {rate / 1e12:g}" for dtype, rate in device.flops_per_second.items())
    everything = sources.get("*", "")
    print(f"{device.name} ({device.vendor} {device.architecture})")
    print(f"  TFLOP/s, dense   {rates}  [{sources.get('flops_per_second', everything)}]")
    usable = format_bytes(device.memory_bytes, digits=2)
    print(f"  memory           {usable} usable  [{sources.get('memory_bytes', everything)}]")
    bandwidth = device.memory_bytes_per_second / 1e9
    print(f"  memory bandwidth {bandwidth:g} GB/s  [{sources.get('memory_bytes_per_second', everything)}]")
    rate, kind = link_of(device)
    shown = kind if rate is None else f"{rate / 1e9:g} GB/s in one direction to another device of the node ({kind})"
    print(f"  link             {shown}")
    print(f"  operator times   {operator_sources(device)}")
    if not device.can_train:
        print("  trains           no: forward passes only")
    if not device.peer_to_peer:
        print("  peer to peer     no: collectives go through the host")
    if device.notes:
        print(f"  note             {device.notes}")


def link_of(device: DeviceType) -> tuple[float | None, str]:
    """Bytes per second between two devices of a node and the link's kind; None where it is the node's PCIe."""
    entry = catalog.read("devices.yaml").get(device.name, {}).get("link")
    return (entry["GBps"] * 1e9, entry["kind"]) if entry else (None, "PCIe of its node")


def operator_sources(device: DeviceType) -> str:
    """Say where a plan's operator times on this device come from, and what else could be used."""
    from hetrl_profiler.aiconfigurator import PACKAGE, installed_version, systems

    library = OperatorLibrary.builtin()
    operators = ("gemm", "attention_prefill", "attention_decode", "memory")
    fitted = [name for name in operators if library.fitted(device.name, name, "bf16") is not None]
    text = f"fitted to published measurements: {', '.join(fitted)}" if fitted else "datasheet figures"
    version = installed_version()
    if version is None:
        return text
    measured = [system for system in systems() if system.device_name == device.name and system.families]
    if not measured:
        return f"{text}; {PACKAGE} {version} has no tables of it"
    families = ", ".join(sorted({family for system in measured for family in system.families}))
    return (
        f"{text}; {PACKAGE} {version} is installed and has tables of it ({families}): "
        f"hetrl fit --aiconfigurator --device-name {device.name}"
    )


def print_instances(*, as_json: bool) -> int:
    """Print the cloud instances with their dated prices."""
    rows = catalog.read("instances.yaml")
    if as_json:
        print(json.dumps(rows, indent=2))
        return EXIT_OK
    print(f"{'instance':<28} {'devices':<20} {'Gbps':>5} {'RAM GiB':>8} {'vCPU':>5} {'USD/h':>8}  price")
    for name, row in rows.items():
        price = f"{row['usd_per_hour']:.2f}" if row.get("usd_per_hour") else "unknown"
        print(
            f"{name:<28} {row['count']:>2} x {row['device']:<15} {row['network_Gbps']:>5} {row['host_ram_GiB']:>8} "
            f"{row['vcpus']:>5} {price:>8}  {row.get('price', '')}"
        )
    return EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hetrl devices``."""
    return run_command(add_arguments, run, argv, prog="hetrl devices", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
