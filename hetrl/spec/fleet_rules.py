"""Hard rules on which devices may work together and which dtypes they compute. See `rules` for how a model splits."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hetrl.errors import Problem
from hetrl.spec.devices import DeviceType
from hetrl.spec.job import Precision
from hetrl.spec.topology import Topology

# fp8 needs the tensor cores of Ada, Hopper or newer on NVIDIA (compute capability 8.9), CDNA3 or newer on AMD.
USES = ("train", "score", "generate", "kv_cache")


def dtype_problems(device: DeviceType, dtype: str, *, use: str = "train", path: str = "precision") -> list[Problem]:
    """Check that a device computes in a dtype, and that it trains at all if it is to train.

    Rules: DTYPE_SUPPORT, TRAIN_SUPPORT.
    """
    problems = []
    if not device.supports(dtype):
        valid = ", ".join(name for name in device.flops_per_second if name != "tf32")
        note = f"; {device.architecture}" if device.architecture else ""
        problems.append(
            Problem(
                path=path, message=f"{device.name} has no {dtype}{note}", found=dtype, valid=valid, rule="DTYPE_SUPPORT"
            )
        )
    if use == "train" and not device.can_train:
        problems.append(
            Problem(
                path=path,
                message=f"{device.name} only runs forward passes",
                found=device.name,
                valid="score or generate there",
                rule="TRAIN_SUPPORT",
            )
        )
    return problems


def running_problems(device: DeviceType, kind: str, precision: Precision, *, path: str = "precision") -> list[Problem]:
    """Check that a device can run tasks of a kind in a job's dtypes; see `dtype_problems`."""
    problems = dtype_problems(device, precision.dtype, use=kind, path=path)
    if kind == "generate" and precision.kv_cache_dtype == "fp8":
        problems += dtype_problems(device, "fp8", use="kv_cache", path=path)
    return problems


def collective_problems(topology: Topology, devices: Sequence[int], *, path: str = "devices") -> list[Problem]:
    """Check devices that share a collective of any kind: existing, distinct, one vendor.

    Rules: DEVICE_ID, DEVICE_TWICE, VENDOR_MIX.
    """
    problems = []
    known = range(topology.num_devices)
    unknown = sorted({device for device in devices if device not in known})
    if unknown:
        problems.append(
            Problem(
                path=path,
                message="no such device",
                found=", ".join(map(str, unknown)),
                valid=f"0 to {len(known) - 1}",
                rule="DEVICE_ID",
            )
        )
        return problems
    repeated = (
        sorted({device for device in devices if list(devices).count(device) > 1})
        if len(set(devices)) < len(devices)
        else []
    )
    if repeated:
        problems.append(
            Problem(
                path=path,
                message="tasklets of one task sit on different devices",
                found=", ".join(map(str, repeated)),
                valid="each device once",
                rule="DEVICE_TWICE",
            )
        )
    vendors = {topology.devices[device].type.vendor for device in devices}
    if len(vendors) > 1:
        problems.append(
            Problem(
                path=path,
                message="devices of different vendors never share a collective",
                found=", ".join(sorted(vendors)),
                valid="one vendor per task; exchange weights and samples over the host network",
                rule="VENDOR_MIX",
            )
        )
    return problems


def tensor_group_problems(
    topology: Topology,
    devices: Sequence[int],
    *,
    allow_across_nodes: bool = False,
    allow_mixed_types: bool = False,
    path: str = "devices",
) -> list[Problem]:
    """Check the devices of one tensor-parallel group: one node (or NVLink domain) and one type unless told otherwise.

    Different architectures are refused even where mixed types are allowed: compiled kernels differ.

    Rules: those of `collective_problems`, TP_ONE_NODE, TP_ONE_TYPE, TP_ARCHITECTURE.
    """
    problems = collective_problems(topology, devices, path=path)
    if problems:
        return problems
    if not allow_across_nodes and not topology.same_tensor_domain(devices):
        nodes = sorted({topology.nodes[topology.devices[device].node].id for device in devices})
        sizes = tensor_domain_sizes(topology)
        problems.append(
            Problem(
                path=path,
                message="a tensor group stays inside one node or NVLink domain",
                found=", ".join(nodes),
                valid=f"tensor degree up to {max(sizes)} here, or pipeline stages across nodes",
                rule="TP_ONE_NODE",
            )
        )
    types = {topology.devices[device].type.name: topology.devices[device].type for device in devices}
    architectures = {device.architecture for device in types.values()}
    if len(architectures) > 1:
        problems.append(
            Problem(
                path=path,
                message="a tensor group has one architecture",
                found=", ".join(f"{device.name} ({device.architecture or 'unknown'})" for device in types.values()),
                valid="pipeline stages, or one device each",
                rule="TP_ARCHITECTURE",
            )
        )
    elif len(types) > 1 and not allow_mixed_types:
        problems.append(
            Problem(
                path=path,
                message="a tensor group has one device type; the smallest would size it",
                found=", ".join(types),
                valid="pipeline stages with uneven layers, or one type",
                rule="TP_ONE_TYPE",
            )
        )
    return problems


def tensor_domain_sizes(topology: Topology) -> tuple[int, ...]:
    """Return the number of devices of each node or NVLink domain, largest first."""
    sizes: dict[str, int] = {}
    for node in topology.nodes:
        key = f"domain {node.nvlink_domain}" if node.nvlink_domain else f"node {node.id}"
        sizes[key] = sizes.get(key, 0) + node.num_devices
    return tuple(sorted(sizes.values(), reverse=True))


def tensor_groups(topology: Topology, degree: int) -> tuple[tuple[int, ...], ...]:
    """Return disjoint tensor groups of ``degree`` devices, each inside a node or NVLink domain and of one type.

    Devices that do not fill a group are left over.
    """
    domains: dict[tuple[str, str], list[int]] = {}
    for node_index, node in enumerate(topology.nodes):
        key = (f"domain {node.nvlink_domain}" if node.nvlink_domain else f"node {node.id}", node.device_type.name)
        domains.setdefault(key, []).extend(topology.devices_of(node_index))
    return tuple(
        tuple(devices[start : start + degree])
        for devices in domains.values()
        for start in range(0, len(devices) - degree + 1, degree)
    )


def request_problems(
    topology: Topology, devices_per_node: Sequence[int], *, equal_nodes: bool = False, path: str = "devices_per_node"
) -> list[Problem]:
    """Check a request written as devices per node against the nodes that really exist.

    Rules: NODE_SHAPE (more than any node has, or unequal where the backend needs equal), NODE_COUNT.
    """
    real = sorted((node.num_devices for node in topology.nodes), reverse=True)
    asked = sorted(devices_per_node, reverse=True)
    problems = []
    if len(asked) > len(real):
        problems.append(
            Problem(
                path=path,
                message=f"{len(asked)} nodes asked for, {len(real)} exist "
                f"({', '.join(node.id for node in topology.nodes[:16])})",
                found=str(list(devices_per_node)),
                valid=str([node.num_devices for node in topology.nodes[:64]]),
                rule="NODE_COUNT",
            )
        )
    if any(want > have for want, have in zip(asked, real, strict=False)):
        problems.append(
            Problem(
                path=path,
                message="more devices per node than the nodes have",
                found=str(list(devices_per_node)),
                valid=str([node.num_devices for node in topology.nodes[:64]]),
                rule="NODE_SHAPE",
            )
        )
    if equal_nodes and len(set(real)) > 1:
        problems.append(
            Problem(
                path=path,
                message="this backend needs nodes of equal size",
                found=str(real[:64]),
                valid=f"{real[-1]} devices on every node, or a backend that takes unequal ones",
                rule="NODE_SHAPE",
            )
        )
    return problems


def missing_nodes(expected: Collection[str], present: Collection[str]) -> list[Problem]:
    """Return one problem that names the nodes of a fleet that did not join.

    Rules: NODE_MISSING.
    """
    absent = [name for name in expected if name not in set(present)]
    if not absent:
        return []
    return [
        Problem(
            path="cluster_topology.nodes",
            message=f"{len(absent)} of {len(expected)} nodes did not join",
            found=", ".join(sorted(present)) or "none",
            valid="missing: " + ", ".join(absent),
            rule="NODE_MISSING",
        )
    ]


def world_problems(
    num_devices: int, *, tensor_parallel: int, pipeline_parallel: int = 1, replicas: int = 0, path: str = "parallel"
) -> list[Problem]:
    """Check that replicas x stages x tensor ranks fit the devices; unused devices are reported too.

    Rules: WORLD_SIZE, DEVICES_IDLE (a remark: the plan runs, but devices stay idle).
    """
    each = tensor_parallel * pipeline_parallel
    count = replicas or num_devices // each
    if each > num_devices or count * each > num_devices:
        possible = max(num_devices // each, 0)
        valid = f"{possible} replicas of {each} devices" if possible else f"at most {num_devices} devices per replica"
        if replicas and num_devices >= replicas:
            valid += f", or {replicas} replicas of {num_devices // replicas} devices"
        return [
            Problem(
                path=path,
                message=f"{max(count, 1)} x {each} devices asked for, {num_devices} exist",
                found=str(max(count, 1) * each),
                valid=valid,
                rule="WORLD_SIZE",
            )
        ]
    if count * each < num_devices:
        return [
            Problem(
                path=path,
                message=f"{num_devices - count * each} of {num_devices} devices stay idle",
                found=str(count * each),
                valid=f"replicas x {each} = {num_devices}",
                rule="DEVICES_IDLE",
            )
        ]
    return []


def pool_problems(num_devices: int, pools: dict[str, int], *, colocated: bool = False) -> list[Problem]:
    """Check disjoint pools of devices (trainer, rollout, ...) against the devices that exist.

    Rules: POOL_SIZE.
    """
    wanted = max(pools.values(), default=0) if colocated else sum(pools.values())
    problems = [
        Problem(path=f"pools.{name}", message="a pool needs at least one device", found=str(size), rule="POOL_SIZE")
        for name, size in pools.items()
        if size < 1
    ]
    if wanted > num_devices:
        text = " + ".join(f"{name} {size}" for name, size in pools.items())
        problems.append(
            Problem(
                path="pools",
                message=f"{text} = {wanted} devices, {num_devices} exist",
                found=str(wanted),
                valid="colocate the pools, or smaller ones",
                rule="POOL_SIZE",
            )
        )
    return problems


def pool_devices(num_devices: int, pools: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Return disjoint, contiguous device ids for each pool, in the order given.

    >>> pool_devices(8, {"train": 2, "rollout": 6})
    {'train': (0, 1), 'rollout': (2, 3, 4, 5, 6, 7)}
    """
    start = 0
    result = {}
    for name, size in pools.items():
        result[name] = tuple(range(start, min(start + size, num_devices)))
        start += size
    return result
