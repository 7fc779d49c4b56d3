"""Every name of a device, from a catalogue name to what a driver prints, to one `DeviceType`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from hetrl import catalog
from hetrl.errors import Problem, SpecError, did_you_mean
from hetrl.spec.devices import DeviceType
from hetrl.units import MIB

# Names that fit several cards: the one taken, and the others, tell-tale memory first.
AMBIGUOUS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "a100": ("A100-80GB", "A100-40GB"),
        "a100-sxm": ("A100-80GB", "A100-40GB"),
        "v100": ("V100-SXM2-32GB", "V100-SXM2-16GB"),
        "a100-pcie": ("A100-80GB-PCIe", "A100-40GB-PCIe"),
    }
)
# Labels a scheduler gives to many different cards (in folded form); they never name one.
_LINE, _VENDOR = "a product line, not a card", "a vendor, not a card"
COARSE_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "g": "Ray's label for every GeForce card",
        "rtx": "Ray's label for every RTX workstation card",
        "core-neuron": "Ray's label for every Neuron core",
        "gpu": "any GPU",
        "cuda": "any NVIDIA GPU",
        **dict.fromkeys(("tesla", "geforce", "gaudi", "neuron", "instinct", "radeon", "tpu"), _LINE),
        **dict.fromkeys(("nvidia", "amd", "intel", "aws", "google"), _VENDOR),
    }
)
MEMORY_TOLERANCE = 0.12
_NOISE = frozenset(
    {
        "nvidia",
        "amd",
        "intel",
        "aws",
        "google",
        "tesla",
        "instinct",
        "oam",
        "geforce",
        "generation",
        "edition",
        "gpu",
        "hbm2",
        "hbm2e",
        "hbm3",
        "hbm3e",
    }
)
# A slice of a partitioned GPU (MIG): compute slices and memory, e.g. 3g.20gb; "+me" and the like are media engines.
_MIG = re.compile(r"(?:^|[\s_-])(?:mig[\s_-]*)?(\d+)g[.\-](\d+)gb(?:\+[\w.]+)?$", re.IGNORECASE)
_MIG_COMPUTE_SLICES = (
    8  # seven usable slices are about 7/8 of the multiprocessors (98 of 108 on A100, 112 of 132 on H100)
)


@cache
def catalogue_devices() -> Mapping[str, DeviceType]:
    """Return every device type of the catalogue by its exact name."""
    return MappingProxyType({name: _device_type(name, entry) for name, entry in catalog.read("devices.yaml").items()})


def _device_type(name: str, entry: Mapping[str, object]) -> DeviceType:
    tflops = entry["tflops"]
    assert isinstance(tflops, dict)
    return DeviceType(
        name=name,
        vendor=str(entry["vendor"]),
        architecture=str(entry["architecture"]),
        flops_per_second=MappingProxyType({dtype: value * 1e12 for dtype, value in tflops.items()}),
        memory_bytes=entry["memory_mib"] * MIB,  # type: ignore[operator]
        memory_bytes_per_second=entry["memory_GBps"] * 1e9,  # type: ignore[operator]
        can_train=bool(entry.get("can_train", True)),
        peer_to_peer=bool(entry.get("peer_to_peer", True)),
        sources=MappingProxyType(dict(entry["sources"])),  # type: ignore[call-overload]
        notes=str(entry.get("notes", "")),
    )


def fold(name: str) -> str:
    """Return a spelling-independent form: case, separators, word order and vendor names do not matter, nor ``40G``.

    >>> fold("NVIDIA A100-SXM4-40GB") == fold("a100 40g sxm")
    True
    """
    words = re.split(r"[\s_\-/,]+", re.sub(r"\((?:r|tm)\)", "", name.casefold()).strip())
    words = [re.sub(r"^(\d+)g(?:i?b)?$", r"\1gb", word) for word in words]
    words = [re.sub(r"^sxm\d$", "sxm", word) for word in words]
    kept = [word for word in words if word and word not in _NOISE]
    return "-".join(sorted(kept or words))


@cache
def _by_folded_name() -> Mapping[str, str]:
    table: dict[str, str] = {}
    for name, entry in catalog.read("devices.yaml").items():
        for alias in (name, *entry["driver_names"], *entry.get("aliases", ())):
            other = table.setdefault(fold(alias), name)
            if other != name:
                raise AssertionError(f"catalogue name {alias!r} means both {other} and {name}")
    return MappingProxyType(table)


def known_names() -> tuple[str, ...]:
    """Return all catalogue names."""
    return tuple(catalogue_devices())


def find_device(name: str, *, memory_bytes: float | None = None, path: str = "") -> tuple[DeviceType, str]:
    """Return the device type of a name and a warning ('' if none).

    Parameters
    ----------
    name
        A catalogue name, an alias, or the name that a driver prints (``NVIDIA A100-SXM4-40GB``).
    memory_bytes
        Memory as reported, if known: decides between cards of one name.
    path
        YAML path for the message.

    Raises
    ------
    SpecError
        For an unknown name or a label that fits many cards.

    Examples
    --------
    >>> find_device("NVIDIA A100-SXM4-40GB")[0].name
    'A100-40GB'
    """
    devices = catalogue_devices()
    slice_ = _MIG.search(name.strip())
    if slice_:
        parent, warning = find_device(_mig_parent(name, slice_, path), memory_bytes=memory_bytes, path=path)
        return mig_slice(parent, int(slice_[1]), int(slice_[2]), path=path), warning
    folded = fold(name)
    exact = _by_folded_name().get(folded)
    candidates = AMBIGUOUS.get(folded, ())
    if memory_bytes is not None and (candidates or exact):
        same_line = candidates or tuple(other for other in devices if other == exact or other.startswith(f"{exact}-"))
        fitting = [
            other for other in same_line if abs(devices[other].memory_bytes / memory_bytes - 1) <= MEMORY_TOLERANCE
        ]
        if len(fitting) == 1 or (fitting and exact not in fitting):
            return devices[fitting[0]], ""
    if exact is not None:
        return devices[exact], ""
    if candidates:
        taken, *others = candidates
        return devices[taken], f"'{name}' was read as {taken}; write {' or '.join(others)} if that is the card"
    if folded in COARSE_LABELS:
        raise SpecError(
            Problem(
                path=path,
                message=f"'{name}' is {COARSE_LABELS[folded]}",
                found=name,
                valid="an exact name, see `hetrl devices`",
                rule="DEVICE_NAME",
            )
        )
    hint = did_you_mean(name, devices)
    raise SpecError(
        Problem(path=path, message="unknown device", found=name, rule="DEVICE_NAME",
                valid=(hint + " " if hint else "") + "`hetrl devices` lists the catalogue; describe others under "
                "device_types: (flops, memory, memory_bandwidth)")
    )  # fmt: skip


def _mig_parent(name: str, match: re.Match[str], path: str) -> str:
    parent = re.sub(r"[\s_-]*mig$", "", name.strip()[: match.start()], flags=re.IGNORECASE).strip(" -_,:")
    if not parent:
        raise SpecError(
            Problem(
                path=path,
                message="a MIG slice needs its GPU's name before it",
                found=name,
                valid=f"A100-40GB MIG {match[1]}g.{match[2]}gb",
                rule="DEVICE_NAME",
            )
        )
    return parent


def mig_slice(parent: DeviceType, compute_slices: int, memory_gb: int, *, path: str = "") -> DeviceType:
    """Return the device type of one slice of a partitioned GPU: its own memory, never the parent's.

    Compute is taken as ``compute_slices`` eighths of the parent, bandwidth as the share of memory (estimates).

    Examples
    --------
    >>> mig_slice(find_device("A100-40GB")[0], 3, 20).memory_bytes
    20000000000
    """
    share = memory_gb * 1e9 / parent.memory_bytes
    if parent.vendor != "nvidia" or not 1 <= compute_slices <= 7 or share > 1.05 or memory_gb < 1:
        raise SpecError(
            Problem(
                path=path,
                message=f"{parent.name} has no such slice",
                found=f"{compute_slices}g.{memory_gb}gb",
                valid="1 to 7 compute slices and at most the GPU's memory",
                rule="DEVICE_NAME",
            )
        )
    compute = compute_slices / _MIG_COMPUTE_SLICES
    return replace(
        parent,
        name=f"{parent.name}-MIG-{compute_slices}g.{memory_gb}gb",
        flops_per_second=MappingProxyType({dtype: rate * compute for dtype, rate in parent.flops_per_second.items()}),
        memory_bytes=min(int(memory_gb * 1e9), parent.memory_bytes),
        memory_bytes_per_second=parent.memory_bytes_per_second * min(share, 1.0),
        peer_to_peer=False,
        sources=MappingProxyType({"*": f"share of {parent.name}; compute and bandwidth are estimates"}),
        notes="slices do not reach each other by peer-to-peer copies",
    )
