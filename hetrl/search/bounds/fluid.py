"""Lower bounds that hold for every plan of a job, at any size.

A task's work is a number of layer passes. A device of type y needs at least its cheapest seconds for one pass, over
all tensor degrees and micro-batches, so n devices need at least 1/n of their sum: the fluid bound, which knows no
pipeline fill, no memory limit and no transfer. Where every task of one phase must end before any of the next begins,
phases add up; inside a phase tasks share the fleet, and Lagrangian prices of device-seconds bound its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.collectives import OPERATIONS
from hetrl.cost.tables import MICRO_BATCHES, SCALARS, TASK_KINDS, TENSOR_DEGREES, CostTables
from hetrl.spec.job import Job

Floats = NDArray[np.float64]
NUM_PRICE_STEPS = 60
ALL_REDUCES_PER_LAYER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FluidBounds:
    """Lower bounds of every task.

    Parameters
    ----------
    device_seconds
        ``[A, Y]``: on devices of one type; n devices need at least 1/n of it.
    latency
        ``[A]``: seconds that no number of devices undercuts.
    fixed
        ``[A]``: seconds on top of the fluid part, whatever the devices: optimizer steps.
    """

    device_seconds: Floats
    latency: Floats
    fixed: Floats


def fluid_bounds(job: Job, tables: CostTables) -> FluidBounds:
    """Work out the fluid and latency bounds of all tasks."""
    rows = [_task_bound(job, tables, index) for index in range(len(job.workflow.tasks))]
    return FluidBounds(
        device_seconds=np.stack([row for row, _ in rows]),
        latency=np.array([latency for _, latency in rows]),
        fixed=np.array([_optimizer_bound(job, tables, index) for index in range(len(rows))]),
    )


def fleet_bound(job: Job, tables: CostTables, fluid: FluidBounds, floors: Sequence[float]) -> float:
    """Seconds that no plan of this job can undercut (step time, or period), from the ``floors`` of its phases."""
    tasks = job.workflow.tasks
    devices = np.zeros(fluid.device_seconds.shape[1])
    np.add.at(devices, tables.node_type, tables.node_devices)
    chain = sum(floors)
    if job.staleness == 0:
        return chain
    return max(phase_bound(devices, fluid, tuple(range(len(tasks))), overlap=True), chain / (1 + job.staleness))


def phase_bounds(job: Job, tables: CostTables, fluid: FluidBounds) -> list[float]:
    """Seconds of every phase on the whole fleet."""
    devices = np.zeros(fluid.device_seconds.shape[1])
    np.add.at(devices, tables.node_type, tables.node_devices)
    return [phase_bound(devices, fluid, phase) for phase in phases(job)]


def phases(job: Job) -> list[tuple[int, ...]]:
    """Split the tasks, in order, wherever every task after needs every task before (directly or not)."""
    tasks = job.workflow.tasks
    before: dict[str, set[str]] = {}
    for task in tasks:
        before[task.name] = set(task.needs).union(*(before[need] for need in task.needs)) if task.needs else set()
    result: list[tuple[int, ...]] = []
    start = 0
    for cut in range(1, len(tasks) + 1):
        earlier = {task.name for task in tasks[:cut]}
        if all(earlier <= before[task.name] for task in tasks[cut:]):
            result.append(tuple(range(start, cut)))
            start = cut
    return result


def phase_bound(devices: Floats, fluid: FluidBounds, phase: tuple[int, ...], *, overlap: bool = False) -> float:
    """Seconds of tasks that share the fleet: slowest latency, slowest task with all devices, and the priced total.

    With ``overlap`` tasks of several steps run at once, so a task's latency does not count.
    """
    work = fluid.device_seconds[list(phase)]
    with np.errstate(divide="ignore"):
        alone = 1.0 / (devices / work).sum(axis=1) + (0.0 if overlap else fluid.fixed[list(phase)])
    best = max(float(alone.max()), priced_bound(devices, work))
    return best if overlap else max(best, float(fluid.latency[list(phase)].max()))


def priced_bound(devices: Floats, work: Floats) -> float:
    """Lagrangian bound ``max_p sum_t min_y p_y work[t, y]`` over prices p >= 0 with ``sum_y devices_y p_y = 1``.

    Any prices give a valid bound; these follow the overloaded device types.
    """
    present = (devices > 0) & np.isfinite(work).any(axis=0)  # a type that runs none of the tasks has no price
    work, devices = work[:, present], devices[present]
    prices = (1.0 / work).sum(axis=0)
    best = 0.0
    for step in range(NUM_PRICE_STEPS):
        prices = prices / (devices @ prices)
        priced = prices * work
        cheapest = priced.argmin(axis=1)
        best = max(best, float(priced.min(axis=1).sum()))
        load = np.zeros_like(devices)
        np.add.at(load, cheapest, work[np.arange(len(work)), cheapest])
        load /= devices
        prices = prices * np.exp(0.5 / (1 + step) ** 0.6 * (load / max(load.max(), 1e-300) - 0.5))
    return best


def _task_bound(job: Job, tables: CostTables, index: int) -> tuple[Floats, float]:
    task, batch = job.workflow.tasks[index], job.batch
    sequences = batch.num_prompts * task.sequences_per_prompt
    if TASK_KINDS[tables.task_kind[index]] == "generate":
        prefill = _passes(tables, index, forward_passes=1, phase="prefill") * batch.num_prompts
        return prefill + _decode_work(tables, index, sequences), _decode_latency(tables, index, sequences)
    if task.kind == "score":
        return _passes(tables, index, forward_passes=1, phase="score") * sequences, 0.0
    work = _passes(tables, index, forward_passes=3, phase="train") * sequences * batch.num_epochs
    if task.role == "actor":
        work = work + _passes(tables, index, forward_passes=1, phase="score") * sequences
    return work, 0.0


def _optimizer_bound(job: Job, tables: CostTables, index: int) -> float:
    """Seconds of all optimizer steps, spread over the whole fleet.

    Where all states together exceed the fleet's memory they must be stepped on the hosts, through host memory.
    """
    if TASK_KINDS[tables.task_kind[index]] != "train" or job.precision.lora_rank > 0:
        return 0.0
    parameters = float(tables.model_parameters[tables.task_model[index]])
    state = parameters * sum(_scalar(tables, f"{name}_bytes") for name in ("weight", "gradient", "optimizer"))
    memory = float((tables.node_limit * tables.node_devices).sum())
    through = float((tables.type_bandwidth[tables.node_type] * tables.node_devices).sum())
    if state > memory:
        through = float(tables.node_host_memory.sum())
    return (
        job.batch.num_epochs * job.batch.num_mini_batches * state / through * float(tables.calibration[:, 4, 0].min())
    )


def _passes(tables: CostTables, index: int, *, forward_passes: int, phase: str) -> Floats:
    """Device-seconds of one sequence through the whole model by type; a backward pass is two forward passes."""
    model = int(tables.task_model[index])
    scale = tables.calibration[:, {"prefill": 1, "score": 2, "train": 3}[phase], 0]
    degrees = np.array(TENSOR_DEGREES, dtype=np.float64)
    if phase == "prefill":
        shapes = np.arange(len(MICRO_BATCHES), tables.layer_seconds.shape[3])
        sizes = np.arange(1, len(shapes) + 1, dtype=np.float64)
    else:
        shapes, sizes = np.arange(len(MICRO_BATCHES)), np.array(MICRO_BATCHES, dtype=np.float64)
    per_device = degrees[None, :, None] / sizes[None, None, :]
    layers = tables.layer_seconds[model][:, :, shapes]  # [Y, T, S, K]
    counts = tables.kinds_before[model, :, tables.model_layers[model]]
    work = []
    for kind in range(int(tables.model_kinds[model])):
        each = (layers[..., kind] * per_device).min(axis=(1, 2)) * scale * forward_passes
        work.append(each * counts[kind])
    head = (tables.head_seconds[model][:, :, shapes] * per_device).min(axis=(1, 2)) * scale * forward_passes
    return _joint([*work, head])


def _joint(parts: list[Floats]) -> Floats:
    """Device-seconds of several kinds of work together, by type.

    Types may specialise, so a plain sum would not be a bound. In units of the cheapest type's seconds, a type handles
    at most as many units per second as it does of the kind that suits it best.
    """
    stacked = np.stack(parts)
    reference = stacked[:, int(np.argmin(stacked.sum(axis=0)))]
    used = reference > 0
    rate = (stacked[used] / reference[used, None]).min(axis=0)
    return np.asarray(reference.sum() * rate)


def _decode_work(tables: CostTables, index: int, sequences: int) -> Floats:
    """Device-seconds of decoding all responses by type: cheapest over tensor degrees and concurrency."""
    model = int(tables.task_model[index])
    grid = tables.concurrency_grid[tables.concurrency_grid <= 256]
    size = len(grid)
    low, high = tables.decode_contexts
    prompt, mean = _scalar(tables, "prompt_tokens"), _scalar(tables, "mean_response")
    segment = float(tables.tail_times[0]) * 2
    tokens = min(mean, float(tables.tail_alive.sum()) * segment)
    context = prompt + min(float(tables.tail_times[0]), mean / 2)
    per_device = np.array(TENSOR_DEGREES, dtype=np.float64)[None, :, None] / grid[None, None, :]
    scale = tables.calibration[:, 0, 0]
    parts = []
    for kind in range(int(tables.model_kinds[model])):
        attention = tables.decode_attention[model][:, :, kind, :, :size]
        with np.errstate(invalid="ignore"):
            slope = np.maximum(attention[:, :, 1] - attention[:, :, 0], 0.0) / (high - low)
        seen = min(context, float(tables.kind_window[model, kind]))
        with np.errstate(invalid="ignore"):
            each = tables.decode_projections[model][:, :, kind, :size] + np.maximum(
                attention[:, :, 0] + slope * (seen - low), 0.0
            )
        each = np.where(np.isnan(each), np.inf, each)
        count = int(tables.kinds_before[model, kind, tables.model_layers[model]])
        parts.append((each * per_device).min(axis=(1, 2)) * scale * count)
    parts.append((tables.decode_head[model][:, :, :size] * per_device).min(axis=(1, 2)) * scale)
    return _joint(parts) * tokens * sequences


def _decode_latency(tables: CostTables, index: int, num_sequences: int) -> float:
    """Seconds of the decode iterations of the replica with the most sequences, on the fastest tensor group.

    Every replica holds all weights, so the fleet's memory limits their number, and some replica has at least the mean
    number of sequences. Whatever its concurrency, it needs as many iterations as the best one.
    """
    model = int(tables.task_model[index])
    counts = tables.kinds_before[model, : int(tables.model_kinds[model]), tables.model_layers[model]]
    layers = (tables.decode_projections[model][:, :, : len(counts), 0] * counts).sum(axis=2)
    latency = tables.node_collective[:, OPERATIONS.index("all_reduce")][:, TENSOR_DEGREES, 0]  # [N, T]
    least = np.array([latency[tables.node_type == kind].min(axis=0) for kind in range(len(tables.type_flops))])
    reduces = ALL_REDUCES_PER_LAYER * float(tables.model_layers[model]) * least
    seconds = tables.calibration[:, 0, 0, None] * (layers + tables.decode_head[model][:, :, 0] + reduces)
    per_iteration = float((seconds + tables.calibration[:, 0, 1, None]).min())
    memory = float((tables.node_limit * tables.node_devices).sum())
    most_replicas = max(1, min(int(memory // float(tables.transfer_weights[index])), int(tables.node_devices.sum())))
    here = -(-num_sequences // most_replicas)
    segment = float(tables.tail_times[0]) * 2
    running = np.arange(1, min(here, int(tables.concurrency_grid[-1])) + 1, dtype=np.float64)
    tail = (1.0 - (1.0 - tables.tail_alive[None, :]) ** running[:, None]).sum(axis=1) * segment
    iterations = (here - running) * _scalar(tables, "mean_response") / running + tail
    return per_iteration * float(iterations.min())


def _scalar(tables: CostTables, name: str) -> float:
    return float(tables.scalars[SCALARS.index(name)])
