"""What NVIDIA's tools print about a machine: ``nvidia-smi topo -m`` and ``nvidia-smi -L``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hetrl import catalog
from hetrl.errors import Problem, SpecError
from hetrl.spec.device_names import find_device
from hetrl.spec.devices import DeviceType
from hetrl.spec.topology import Link

MAX_CHARACTERS = 200_000
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_NVLINK = re.compile(r"NV(\d+)")
_RANGES = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
_DEVICE = re.compile(r"(?:GPU|NIC|mlx|efa|rdma|ib|bnxt|roce)\S*", re.IGNORECASE)
_LISTED_GPU = re.compile(r"^\s*GPU\s+(\d+):\s*(.+?)\s*(?:\(UUID:\s*([\w-]+)\))?\s*$")
_LISTED_MIG = re.compile(
    r"^\s*MIG\s+(\d+g\.\d+gb\S*)\s+Device\s+(\d+):\s*(?:\(UUID:\s*([\w/-]+)\))?\s*$", re.IGNORECASE
)
_IDENTIFIER = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F][0-9a-fA-F-]{3,}(?:/\d+/\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopoMatrix:
    """The matrix that ``nvidia-smi topo -m`` prints.

    Parameters
    ----------
    gpus
        Names as printed (``GPU0``, ...).
    words
        ``words[i][j]`` between GPU i and j: ``NV18``, ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS`` or ``X``.
    nics
        Names of the network cards.
    cpu_ranges
        CPU affinity of each GPU as inclusive ranges; empty if not printed.
    """

    gpus: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    nics: tuple[str, ...] = ()
    cpu_ranges: tuple[tuple[tuple[int, int], ...], ...] = ()

    def link(self, source: int, target: int, device: DeviceType, pcie: str = "PCIe-Gen4") -> Link:
        """Return the link between two GPUs of a device type, one direction."""
        word = self.words[source][target]
        table = catalog.read("interconnects.yaml")
        nvlink = _NVLINK.fullmatch(word)
        if nvlink:
            per_link = table["nvlink_GBps_per_link"].get(device.architecture)
            if per_link is None:
                raise SpecError(
                    Problem(
                        path="topo",
                        message=f"bandwidth of an NVLink link of {device.name} is unknown",
                        found=word,
                        valid="interconnect: with a bandwidth",
                        rule="LINK",
                    )
                )
            return Link(latency_seconds=5e-6, bytes_per_second=int(nvlink[1]) * per_link * 1e9, kind=word)
        row = table["topo_words"][word]
        return Link(
            latency_seconds=row["latency_us"] * 1e-6,
            bytes_per_second=table[pcie]["GBps"] * 1e9 * row["share"],
            kind=word,
        )

    def slowest_link(self, device: DeviceType, pcie: str = "PCIe-Gen4") -> Link:
        """Return the slowest link between any two GPUs: what a collective over all of them sees."""
        pairs = [(i, j) for i in range(len(self.gpus)) for j in range(len(self.gpus)) if i != j]
        if not pairs:
            row = catalog.read("interconnects.yaml")[pcie]
            return Link(
                latency_seconds=row["latency_us"] * 1e-6, bytes_per_second=row["GBps"] * 1e9, kind="single device"
            )
        return min(
            (self.link(i, j, device, pcie) for i, j in pairs),
            key=lambda link: (link.bytes_per_second, -link.latency_seconds),
        )

    @property
    def nvlink_groups(self) -> tuple[tuple[int, ...], ...]:
        """Sets of GPUs that reach each other by NVLink, largest first; a GPU without NVLink stands alone."""
        left = list(range(len(self.gpus)))
        groups = []
        while left:
            group, frontier = [], [left[0]]
            while frontier:
                gpu = frontier.pop()
                if gpu in group:
                    continue
                group.append(gpu)
                frontier.extend(other for other in left if _NVLINK.fullmatch(self.words[gpu][other]))
            groups.append(tuple(sorted(group)))
            left = [gpu for gpu in left if gpu not in group]
        return tuple(sorted(groups, key=lambda group: (-len(group), group)))


def parse_topo(text: str, path: str = "topo") -> TopoMatrix:
    """Return the matrix of ``nvidia-smi topo -m`` output.

    Raises
    ------
    SpecError
        If there is no matrix, a row is short, or a word is unknown.
    """
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        raise SpecError(
            Problem(
                path=path, message="not the text of `nvidia-smi topo -m`", found=f"{type(text).__name__}", rule="TOPO"
            )
        )
    lines = [_ANSI.sub("", line).rstrip() for line in text.splitlines() if line.strip()]
    header_at = next(
        (
            number
            for number, line in enumerate(lines)
            if re.match(r"^\s*GPU0\b", line) and not re.match(r"^\s*GPU0\s+X\b", line)
        ),
        None,
    )
    if header_at is None:
        raise SpecError(
            Problem(
                path=path,
                message="no header line with GPU0",
                found=(lines[0] if lines else "nothing")[:60],
                valid="the output of `nvidia-smi topo -m`",
                rule="TOPO",
            )
        )
    columns = []
    for word in lines[header_at].split():
        if not _DEVICE.fullmatch(word):
            break
        columns.append(word)
    gpus = tuple(word for word in columns if word.upper().startswith("GPU") and word[3:].isdigit())
    rows: dict[str, tuple[str, ...]] = {}
    affinities: dict[str, tuple[tuple[int, int], ...]] = {}
    problems = []
    for line in lines[header_at + 1 :]:
        name, *cells = line.split() or [""]  # a blank line, also one of other control characters
        if name not in gpus:
            continue
        words = cells[: len(columns)]
        if len(words) < len(columns):
            problems.append(
                Problem(path=path, message=f"row {name} has {len(words)} of {len(columns)} cells", rule="TOPO")
            )
            continue
        known = catalog.read("interconnects.yaml")["topo_words"]
        bad = [word for word in words if word != "X" and word not in known and not _NVLINK.fullmatch(word)]
        if bad:
            problems.append(
                Problem(
                    path=path,
                    message=f"unknown word in row {name}",
                    found=bad[0][:20],
                    valid="X, NV<n>, " + ", ".join(known),
                    rule="TOPO",
                )
            )
            continue
        rows[name] = tuple(words[columns.index(gpu)] for gpu in gpus)
        affinity = next((cell for cell in cells[len(columns) :] if _RANGES.fullmatch(cell)), "")
        affinities[name] = cpu_ranges(affinity)
    missing = [gpu for gpu in gpus if gpu not in rows]
    if missing and not problems:
        problems.append(Problem(path=path, message="rows are missing", found=", ".join(missing[:8]), rule="TOPO"))
    if problems:
        raise SpecError(problems)
    for i, gpu in enumerate(gpus):
        for j, word in enumerate(rows[gpu]):
            if (word == "X") != (i == j):
                raise SpecError(
                    Problem(path=path, message="only the diagonal is X", found=f"{gpu}, {gpus[j]}: {word}", rule="TOPO")
                )
    return TopoMatrix(
        gpus=gpus,
        words=tuple(rows[gpu] for gpu in gpus),
        nics=tuple(word for word in columns if word not in gpus),
        cpu_ranges=tuple(affinities[gpu] for gpu in gpus) if any(affinities.values()) else (),
    )


def cpu_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Return inclusive ranges of a CPU list.

    >>> cpu_ranges("0-51,104-155")
    ((0, 51), (104, 155))
    """
    ranges = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        ranges.append((int(first[:9]), int((last or first)[:9])))
    return tuple(ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDevice:
    """One usable device of ``nvidia-smi -L``: a whole GPU, or a MIG slice of one."""

    type: DeviceType
    gpu_index: int
    uuid: str = ""


def parse_device_list(text: str, path: str = "devices") -> tuple[ListedDevice, ...]:
    """Return the devices that ``nvidia-smi -L`` lists; a partitioned GPU counts as its slices.

    Raises
    ------
    SpecError
        For text that lists nothing, or an unknown name.
    """
    gpus: list[tuple[int, str, str, list[tuple[str, str]]]] = []
    for line in text.splitlines()[:4096] if isinstance(text, str) else ():
        gpu = _LISTED_GPU.match(line)
        mig = _LISTED_MIG.match(line)
        if gpu:
            gpus.append((int(gpu[1][:6]), gpu[2], gpu[3] or "", []))
        elif mig and gpus:
            gpus[-1][3].append((mig[1], mig[3] or ""))
    if not gpus:
        raise SpecError(
            Problem(
                path=path,
                message="lists no GPU",
                found=repr(text)[:60],
                valid="the output of `nvidia-smi -L`",
                rule="TOPO",
            )
        )
    devices: list[ListedDevice] = []
    for index, name, uuid, slices in gpus:
        if slices:
            devices.extend(
                ListedDevice(type=find_device(f"{name} MIG {profile}", path=path)[0], gpu_index=index, uuid=slice_uuid)
                for profile, slice_uuid in slices
            )
        else:
            devices.append(ListedDevice(type=find_device(name, path=path)[0], gpu_index=index, uuid=uuid))
    return tuple(devices)


def parse_visible_devices(text: str, path: str = "CUDA_VISIBLE_DEVICES") -> tuple[str, ...]:
    """Return the identifiers of a visible-devices variable: indices, ``GPU-<uuid>`` or ``MIG-<uuid>``.

    >>> parse_visible_devices("0,MIG-5c0f1a2b-0000-4444-8888-123456789abc")
    ('0', 'MIG-5c0f1a2b-0000-4444-8888-123456789abc')
    """
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    bad = [part for part in parts if not (part.isdigit() and len(part) < 7) and not _IDENTIFIER.fullmatch(part)]
    problems = [
        Problem(
            path=path,
            message="neither an index nor a UUID",
            found=part[:60],
            valid="0, GPU-<uuid> or MIG-<uuid>",
            rule="DEVICE_NAME",
        )
        for part in bad
    ]
    if len(set(parts)) < len(parts):
        problems.append(Problem(path=path, message="a device is listed twice", found=text[:80], rule="DEVICE_TWICE"))
    if problems:
        raise SpecError(problems)
    return tuple(parts)
