"""Level 2: the parallel layouts of one task on given devices.

A layout says which devices form tensor groups, how tensor groups form pipelines, and how many layers each stage has.
Tensor groups stay inside one node (or NVLink domain) and one device type; training replicas share one layout,
engines and scorers may differ from replica to replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hetrl.cost.pipeline import split_layers
from hetrl.search.context import DeviceCounts, SearchContext
from hetrl.spec.model import Model
from hetrl.spec.workflow import Task

TENSOR_DEGREES = (1, 2, 4, 8, 16)
PIPELINE_DEGREES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Replicas as stages of (layers, devices); no shares yet."""

    replicas: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]

    @property
    def tensor_parallel(self) -> int:
        """Largest tensor degree in use."""
        return max(len(devices) for replica in self.replicas for _, devices in replica)

    @property
    def num_stages(self) -> int:
        """Largest number of pipeline stages in use."""
        return max(len(replica) for replica in self.replicas)


def tensor_degree_allowed(model: Model, tensor_parallel: int) -> bool:
    """Head, key/value head, intermediate and expert-width rules of every layer (with key/value replication)."""
    for layer in model.layer_kinds[0]:
        if layer.num_heads % tensor_parallel:
            return False
        if not layer.kv_is_latent and layer.num_kv_heads % tensor_parallel and tensor_parallel % layer.num_kv_heads:
            return False
        widths = (layer.intermediate_size, layer.moe_intermediate_size, layer.shared_intermediate_size)
        if any(width % tensor_parallel for width in widths):
            return False
    return True


def tensor_groups(context: SearchContext, counts: DeviceCounts, tensor_parallel: int) -> list[tuple[int, ...]]:
    """Tensor groups of one degree, fastest device types first, then by node; leftover devices stay unused."""
    topology = context.topology
    groups = []
    for node in context.nodes:
        devices = topology.devices_of(node)[: counts[node]]
        for start in range(0, len(devices) - tensor_parallel + 1, tensor_parallel):
            groups.append(tuple(devices[start : start + tensor_parallel]))
    dtype = context.job.precision.dtype

    def speed(group: tuple[int, ...]) -> tuple[float, float, int]:
        device = topology.devices[group[0]]
        flops = device.type.flops_per_second
        return (-flops.get(dtype, max(flops.values())), -device.type.memory_bytes, device.node)

    return sorted(groups, key=lambda group: (*speed(group), group))


def layouts(context: SearchContext, task: Task, counts: DeviceCounts) -> Iterator[Layout]:
    """All layouts of a task on a group's devices that the hard rules admit."""
    for tensor_parallel in TENSOR_DEGREES:
        if not tensor_degree_allowed(task.model, tensor_parallel):
            context.counts.cuts["TP_RULES"] += 1
            continue
        groups = tensor_groups(context, counts, tensor_parallel)
        usable = [group for group in groups if _device_allowed(context, task, group[0])]
        if len(usable) < len(groups):
            context.counts.cuts["DTYPE_SUPPORT"] += len(groups) - len(usable)
        if not usable:
            continue
        seen: set[tuple[tuple[tuple[int, ...], ...], ...]] = set()
        for num_stages in PIPELINE_DEGREES:
            if num_stages > min(len(usable), task.model.num_layers):
                break
            for pipelines in _pipelines(context, task, usable, num_stages):
                if pipelines in seen:
                    continue
                seen.add(pipelines)
                layout = _with_layers(context, task, pipelines)
                if layout is not None:
                    yield layout
        if task.kind != "train":
            mixed = _per_type_replicas(context, task, usable)
            if mixed is not None and mixed not in seen:
                layout = _with_layers(context, task, mixed)
                if layout is not None:
                    yield layout


def _device_allowed(context: SearchContext, task: Task, device: int) -> bool:
    kind = context.topology.devices[device].type
    return kind.supports(context.job.precision.dtype) and (kind.can_train or task.kind != "train")


def _pipelines(
    context: SearchContext, task: Task, groups: Sequence[tuple[int, ...]], num_stages: int
) -> Iterator[tuple[tuple[tuple[int, ...], ...], ...]]:
    """Pipelines of ``num_stages`` tensor groups: neighbours chained, or one stage per speed class.

    Vendors never share a pipeline or, in training, a gradient ring: such layouts are built per vendor.
    """
    by_vendor: dict[str, list[tuple[int, ...]]] = {}
    for group in groups:
        by_vendor.setdefault(context.topology.devices[group[0]].type.vendor, []).append(group)
    choices = list(by_vendor.values()) if task.kind == "train" else [list(groups)]
    for usable in choices:
        num_replicas = min(len(usable) // num_stages, context.job.batch.num_prompts)
        if num_replicas == 0:
            continue
        used = usable[: num_replicas * num_stages]
        chained = tuple(tuple(used[i * num_stages : (i + 1) * num_stages]) for i in range(num_replicas))
        strided = tuple(tuple(used[j * num_replicas + i] for j in range(num_stages)) for i in range(num_replicas))
        for pipelines in (chained, strided):
            if all(_one_vendor(context, pipeline) for pipeline in pipelines):
                yield pipelines


def _one_vendor(context: SearchContext, pipeline: Sequence[tuple[int, ...]]) -> bool:
    return len({context.topology.devices[group[0]].type.vendor for group in pipeline}) == 1


def _per_type_replicas(
    context: SearchContext, task: Task, groups: Sequence[tuple[int, ...]]
) -> tuple[tuple[tuple[int, ...], ...], ...] | None:
    """Engines and scorers: per device type the shortest pipeline whose weights leave half of the memory free."""
    by_type: dict[str, list[tuple[int, ...]]] = {}
    for group in groups:
        by_type.setdefault(context.topology.devices[group[0]].type.name, []).append(group)
    if len(by_type) < 2:
        return None
    pipelines: list[tuple[tuple[int, ...], ...]] = []
    for usable in by_type.values():
        memory = context.topology.devices[usable[0][0]].type.memory_bytes * len(usable[0])
        num_stages = max(1, -(-2 * task.model.weight_bytes // memory))
        num_stages = min(num_stages, task.model.num_layers)
        for i in range(len(usable) // num_stages):
            pipelines.append(tuple(usable[i * num_stages : (i + 1) * num_stages]))
    return tuple(pipelines) if pipelines else None


def _with_layers(
    context: SearchContext, task: Task, pipelines: Sequence[Sequence[tuple[int, ...]]]
) -> Layout | None:
    """Split layers over the stages of every pipeline; training replicas share the split of the slowest pipeline."""
    splits = [_split(context, task, pipeline) for pipeline in pipelines]
    if any(split is None for split in splits):
        context.counts.cuts["PP_MEMORY"] += 1
        return None
    if task.kind == "train" and len(set(splits)) > 1:
        shared = _shared_split(context, task, pipelines)
        if shared is None:
            context.counts.cuts["PP_MEMORY"] += 1
            return None
        splits = [shared] * len(pipelines)
    return Layout(
        replicas=tuple(
            tuple((layers, devices) for layers, devices in zip(split or (), pipeline, strict=True))
            for split, pipeline in zip(splits, pipelines, strict=True)
        )
    )


def _split(context: SearchContext, task: Task, pipeline: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    if len(pipeline) == 1:
        return (task.model.num_layers,)
    seconds, fixed, caps = _stage_terms(context, task, pipeline)
    return split_layers(seconds, fixed, caps, task.model.num_layers)


def _shared_split(
    context: SearchContext, task: Task, pipelines: Sequence[Sequence[tuple[int, ...]]]
) -> tuple[int, ...] | None:
    """One split for all replicas: every stage as slow and as small as its slowest and smallest member."""
    terms = [_stage_terms(context, task, pipeline) for pipeline in pipelines]
    num_stages = len(pipelines[0])
    seconds = [max(term[0][j] for term in terms) for j in range(num_stages)]
    fixed = [max(term[1][j] for term in terms) for j in range(num_stages)]
    caps = [min(term[2][j] for term in terms) for j in range(num_stages)]
    return split_layers(seconds, fixed, caps, task.model.num_layers)


def _stage_terms(
    context: SearchContext, task: Task, pipeline: Sequence[tuple[int, ...]]
) -> tuple[list[float], list[float], list[int]]:
    """Seconds per layer, fixed seconds and the memory cap of every stage for one sequence."""
    model = task.model
    tokens = context.job.batch.mean_sequence_tokens
    seconds, fixed, caps = [], [], []
    for number, group in enumerate(pipeline):
        device = context.topology.devices[group[0]].type
        per_layer = context.costs.stage_forward_seconds(device, model, len(group), 0, model.num_layers - 1, 1, tokens)
        per_layer /= max(1, model.num_layers - 1)
        head = context.costs.head_seconds(device, model, len(group), tokens) if number == len(pipeline) - 1 else 0.0
        weights = model.weight_bytes / model.num_layers / len(group)
        seconds.append(per_layer)
        fixed.append(head)
        caps.append(max(1, min(model.num_layers, int(device.memory_bytes // max(weights, 1.0)))))
    return seconds, fixed, caps


