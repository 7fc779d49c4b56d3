"""Checks of a machine before anything starts: environment, network interfaces, host RAM, free devices, prices.

Each takes plain values, so that a launcher, `hetrl validate` and a test use the same rule.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from hetrl.errors import Problem
from hetrl.units import format_bytes

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
# Price of one device and hour outside of which a figure of a catalogue is taken as a sentinel, not as a price.
PLAUSIBLE_USD_PER_DEVICE_HOUR = (0.05, 40.0)
_VIRTUAL = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "cali", "tun", "tap", "kube", "dummy")


def environment_problems(environment: Mapping[str, str], *, engine_sleeps: bool = True) -> list[Problem]:
    """Check environment variables against what the job does.

    An engine that sleeps uses its own memory pool, which PyTorch's expandable segments do not support.

    Rules: ENVIRONMENT.
    """
    problems = []
    for name in ALLOCATOR_VARIABLES:
        settings = dict(
            part.strip().partition(":")[::2] for part in environment.get(name, "").split(",") if part.strip()
        )
        if engine_sleeps and settings.get("expandable_segments", "").strip().casefold() in ("true", "1"):
            problems.append(
                Problem(
                    path=name,
                    message="expandable segments cannot be used with an engine that sleeps (its memory pool)",
                    found=environment[name],
                    valid="expandable_segments:False, or engines that do not sleep",
                    rule="ENVIRONMENT",
                )
            )
    return problems


def routable_interface(interfaces: Mapping[str, str], peer: str) -> tuple[str, list[Problem]]:
    """Return the network interface from which another node is reached, and the problem if there is none.

    Parameters
    ----------
    interfaces
        Name -> address with prefix length, e.g. ``{"lo": "127.0.0.1/8", "ens5": "10.0.3.7/20"}``.
    peer
        Address of another node.

    Rules: INTERFACE.
    """
    candidates: list[tuple[int, str]] = []
    target = _address(peer)
    for name, text in interfaces.items():
        try:
            interface = ipaddress.ip_interface(text)
        except ValueError:
            continue
        if interface.ip.is_loopback or interface.ip.is_link_local or name.startswith(_VIRTUAL):
            continue
        near = target is not None and target in interface.network
        candidates.append((interface.network.prefixlen if near else -1, name))
    if not candidates:
        shown = ", ".join(f"{name} {address}" for name, address in interfaces.items())
        problem = Problem(
            path="interfaces",
            message="no routable network interface: gloo would fall back to 127.0.0.1",
            found=shown or "none",
            valid="set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME",
            rule="INTERFACE",
        )
        return "", [problem]
    return max(candidates)[1], []


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def host_ram_problems(
    needed_bytes: float,
    available_bytes: float,
    *,
    node: str = "",
    knob: str = "fewer offloaded states or workers per node",
) -> list[Problem]:
    """Check the host RAM of a node.

    Rules: HOST_RAM.
    """
    if needed_bytes <= available_bytes:
        return []
    found = f"{format_bytes(needed_bytes, digits=2)} needed, {format_bytes(available_bytes, digits=2)} there"
    return [
        Problem(
            path=f"nodes.{node}.host_ram" if node else "host_ram",
            message="not enough host RAM",
            found=found,
            valid=f"at most {format_bytes(available_bytes, digits=2)}: {knob}",
            rule="HOST_RAM",
        )
    ]


def free_device_problems(wanted: int, total: int, held: Mapping[str, int]) -> list[Problem]:
    """Check free devices (not all devices) of a cluster; ``held`` names who holds how many.

    Rules: DEVICES_BUSY, WORLD_SIZE.
    """
    if wanted > total:
        return [
            Problem(
                path="devices",
                message=f"{wanted} devices wanted, {total} exist",
                found=str(wanted),
                valid=f"at most {total}",
                rule="WORLD_SIZE",
            )
        ]
    free = total - sum(held.values())
    if wanted <= free:
        return []
    holders = ", ".join(f"{name} holds {count}" for name, count in held.items())
    return [
        Problem(
            path="devices",
            message=f"{wanted} devices wanted, {free} of {total} are free",
            found=holders,
            valid=f"at most {max(free, 0)} now, or end the other jobs",
            rule="DEVICES_BUSY",
        )
    ]


def price_problems(
    usd_per_hour: float | None, num_devices: int, *, includes_devices: bool = True, path: str = "usd_per_hour"
) -> list[Problem]:
    """Check that a price can be one: 0 and absurd figures stand for 'unknown', and a bare machine is not the node.

    Rules: PRICE.
    """
    if usd_per_hour is None:
        return []
    low, high = PLAUSIBLE_USD_PER_DEVICE_HOUR
    message = ""
    if usd_per_hour <= 0:
        message = "0 is not a price: leave the key out if it is unknown"
    elif not includes_devices:
        message = "the price of the machine without its accelerators is not the price of the node"
    elif not low <= usd_per_hour / max(num_devices, 1) <= high:
        each = usd_per_hour / max(num_devices, 1)
        message = f"{each:.2f}" if 0.01 <= each < 1e6 else f"{each:g}"
        message += " USD per device and hour is not a plausible price"
    if not message:
        return []
    return [
        Problem(
            path=path,
            message=message,
            found=f"{usd_per_hour:g}",
            valid=f"{low:g} to {high:g} USD per device and hour, or no key: unknown",
            rule="PRICE",
        )
    ]
