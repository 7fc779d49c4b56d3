"""Lower bound of a training task's seconds on given numbers of devices by type.

All replicas share tensor degree T, number of stages P, micro-batch, recomputation, sharding and where the optimizer
states are: a strategy class. For every class the fastest R P tensor groups share the micro-batches; a pipeline of
P stages loses its fill, ``max_j (m - 1 - phi (P - 1 - j)) A_j + sum_j A_j`` with A_j a stage's forward and backward
seconds and phi the forward's share (from the bound of 1F1B in `hetrl.cost.pipeline`); stages have whole layers, the
same ones in every replica; on top of it come the gradient reduce, the optimizer step, and what memory forbids is
left out. The least over classes is the bound: `hetrl_kernels.training_bound` walks them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hetrl.cost.collectives import OPERATIONS
from hetrl.cost.model import PHASES
from hetrl.cost.tables import MICRO_BATCHES, TENSOR_DEGREES, CostTables
from hetrl.search.bounds.passes import (
    PIPELINES,
    Bools,
    Floats,
    Ints,
    most_tensor_groups,
    pass_of,
    rates,
    scalar,
    types_for,
)
from hetrl.spec.job import Job
from hetrl_kernels.training_bound import TrainingBound
from hetrl_kernels.training_bound_tables import SETTING

MOST_REPLICAS_EXACT = 40
"""Larger numbers of replicas are bounded by intervals."""
REPLICA_STEP = 1.3


class TrainingTables(NamedTuple):
    """A training task lowered for its bound. Settings are tensor degree, micro-batch and recomputation, fastest first.

    Axes: ``Q`` settings, ``Y`` types, ``P`` pipelines, ``R`` intervals of replicas, ``T`` tensor degrees.
    """

    num_layers: int
    num_prompts: int
    num_nodes: int
    updates: float
    mini_batches: float
    parameters: float
    states: tuple[float, float, float]  # bytes of one replica's weights, gradients, optimizer states
    layer_states: tuple[float, float]  # bytes of one layer's gradients and weights
    joint_states: float  # bytes of training state in layers; 0 where layers differ
    scales: tuple[float, float]  # calibrations of reduce and optimizer
    exposed: tuple[float, float]  # parts of gradient reduces and weight gathers that nothing hides
    latency: Floats  # [Y] the least to another node
    bandwidth: Floats  # [Y] the largest to another node
    linked: Ints  # [Y] by bandwidth to other nodes
    room: Floats  # [Y] bytes of the roomiest device beside the process
    type_bandwidth: Floats  # [Y]
    host_bandwidth: Floats  # [Y, n] of the nodes that n devices may lie on
    roomiest: Ints  # [Y]
    widest: Ints  # [Y] by memory bandwidth
    pipelines: Ints  # [P]
    replicas: Ints  # [R, 2] fewest and most
    inside: Floats  # [operation, R, Y, 3] a ring inside a node: offset, per sqrt(byte), per byte
    most_groups: Ints  # [T, Y] tensor groups of the fleet
    slots: Ints  # [T, R, Y] times that a node has the fewest replicas' groups
    setting_degree: Ints  # [Q, 2] index and degree
    setting: Floats  # [Q, SETTING]: columns as in `hetrl_kernels.training_bound_tables`
    speed: Floats  # [Q, Y]
    by_layer: Floats  # [Q, Y] seconds of a layer; 0 where layers differ, infinite on types that do not train
    head: Floats  # [Q, Y]
    fastest: Ints  # [Q, Y]
    quickest: Ints  # [Q, Y] by a layer's seconds


def training_bound(job: Job, tables: CostTables, index: int) -> Callable[[Ints], float]:
    """Return the function of device counts ``[Y]`` to the seconds that no layout undercuts on them."""
    return TrainingBound(training_tables(job, tables, index)).seconds


def training_tables(job: Job, tables: CostTables, index: int) -> TrainingTables:
    """Lower a training task."""
    model, batch = int(tables.task_model[index]), job.batch
    usable = types_for(tables, index)
    most_groups = np.stack([most_tensor_groups(tables, degree) for degree in TENSOR_DEGREES])
    most_groups = np.where(usable[None, :], most_groups, 0)
    replicas = _replica_intervals(int(np.minimum(most_groups.sum(axis=1).max(), batch.num_prompts)))
    alike = int(tables.model_kinds[model]) == 1
    states = _states(job, tables, model)
    per_layer = float(tables.kind_parameters[model, : tables.model_kinds[model]].min())
    latency, bandwidth = _best_links(tables)
    layers = min(
        1.0, float(tables.kind_parameters[model, 0] * tables.model_layers[model] / tables.model_parameters[model])
    )
    room = np.zeros(len(usable))
    np.maximum.at(room, tables.node_type, tables.node_limit)
    room = np.maximum(room - tables.type_allowance[:, 0], 0.0)
    settings = [
        each
        for recompute in (False, True)
        for shape in range(len(MICRO_BATCHES))
        for degree_index in np.flatnonzero(tables.tensor_allowed[model]).tolist()
        if (each := _setting(job, tables, index, usable, degree_index, shape, recompute)) is not None
    ]
    reached = [float(most_groups[each.degree_index] @ each.speed) for each in settings]
    order = sorted(
        range(len(settings)),
        key=lambda q: (settings[q].row[0] * settings[q].row[1] / reached[q] if reached[q] > 0 else np.inf, q),
    )
    settings = [settings[q] for q in order]

    def stacked(values: list[Floats]) -> Floats:
        return np.array(values, dtype=np.float64).reshape(len(values), -1)

    speed = stacked([each.speed for each in settings])
    by_layer = stacked([each.by_layer if alike else np.zeros(len(usable)) for each in settings])
    lora = job.precision.lora_rank > 0
    return TrainingTables(
        num_layers=int(tables.model_layers[model]),
        num_prompts=batch.num_prompts,
        num_nodes=len(tables.node_type),
        updates=float(batch.num_epochs * batch.num_mini_batches),
        mini_batches=float(batch.num_mini_batches),
        parameters=max(1.0, float(tables.model_parameters[model])),
        states=states,
        layer_states=(
            states[1] / int(tables.model_layers[model]) if lora else per_layer * scalar(tables, "gradient_bytes"),
            per_layer * scalar(tables, "weight_bytes"),
        ),
        joint_states=sum(states) * layers if alike else 0.0,
        scales=(_least_scale(tables, "reduce"), _least_scale(tables, "optimizer")),
        exposed=(1.0 - scalar(tables, "gradient_overlap"), 1.0 - scalar(tables, "gather_overlap")),
        latency=latency,
        bandwidth=bandwidth,
        linked=np.argsort(-bandwidth, kind="stable"),
        room=room,
        type_bandwidth=tables.type_bandwidth,
        host_bandwidth=_host_bandwidth(tables),
        roomiest=np.argsort(-room, kind="stable"),
        widest=np.argsort(-tables.type_bandwidth, kind="stable"),
        pipelines=np.array(PIPELINES, dtype=np.int64),
        replicas=replicas,
        inside=_rings_inside(tables, replicas),
        most_groups=most_groups,
        slots=_slots(tables, replicas),
        setting_degree=np.array(
            [(each.degree_index, TENSOR_DEGREES[each.degree_index]) for each in settings], dtype=np.int64
        ).reshape(-1, 2),
        setting=stacked([np.array(each.row) for each in settings]),
        speed=speed,
        by_layer=by_layer,
        head=stacked([each.head for each in settings]),
        fastest=np.argsort(-speed, axis=1, kind="stable"),
        quickest=np.argsort(by_layer, axis=1, kind="stable"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Tensor degree, micro-batch and recomputation: a row of `TrainingTables.setting`, and what depends on the type."""

    degree_index: int
    row: tuple[float, ...]
    speed: Floats
    by_layer: Floats
    head: Floats


def _setting(
    job: Job, tables: CostTables, index: int, usable: Bools, degree_index: int, shape: int, recompute: bool
) -> Setting | None:
    """Lower one setting; None where no type can run it."""
    model, batch, micro_batch = int(tables.task_model[index]), job.batch, MICRO_BATCHES[shape]
    degree, kinds = TENSOR_DEGREES[degree_index], int(tables.model_kinds[model])
    hidden = micro_batch * batch.mean_sequence_tokens * float(tables.model_hidden_bytes[model])
    forward = pass_of(tables, model, degree_index, shape, hidden)
    train = tables.calibration[:, PHASES.index("train"), 0]
    update = forward.weighted(train * (4.0 if recompute else 3.0), 3.0 if recompute else 2.0)
    updates = batch.num_epochs * batch.num_mini_batches
    whole = updates * update
    if tables.task_role_is_actor[index]:  # old log-probabilities, once per step
        whole = whole + batch.num_mini_batches * forward.weighted(tables.calibration[:, PHASES.index("score"), 0], 1.0)
    work, speed = rates(whole, forward.weights, usable)
    if not np.isfinite(work):
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (updates * update / whole)[usable]
        ahead = (forward.weighted(train, 1.0) / update)[usable]
    spread = (1.0 + float(tables.type_allowance[:, 3].min())) * batch.max_sequence_tokens
    kept = float(tables.model_hidden_bytes[model])
    if not recompute:
        kept = float(tables.kind_activation[model, degree_index, :kinds].min())
    sequences = int(tables.task_sequences[index]) / (micro_batch * batch.num_mini_batches)
    row = {
        "work": work,
        "amount": batch.num_prompts * sequences,
        "micro_batch": micro_batch,
        "prompt": sequences,
        "least_share": np.nanmin(share),
        "most_share": np.nanmax(share),
        "phi": np.nanmax(ahead),
        "kept_bytes": kept * spread,
        "layer_parameters": float(tables.kind_parameters[model, :kinds].min()) / degree,
        "once": work / float(speed.max()),
        "first_parameters": float(tables.model_outside[model, 0]) / degree,
        "last_parameters": float(tables.model_outside[model, 1]) / degree,
        "logits_bytes": float(tables.model_logits[model, degree_index]) * float(tables.model_is_lm[model]) * spread,
    }
    return Setting(
        degree_index=degree_index,
        row=tuple(float(row[name]) for name in sorted(SETTING, key=SETTING.__getitem__)),
        speed=speed,
        by_layer=np.where(usable, whole[:, 0], np.inf),
        head=whole[:, -1],
    )


def _states(job: Job, tables: CostTables, model: int) -> tuple[float, float, float]:
    """Bytes of one replica's weights, gradients and optimizer states, all ranks together, before any sharding."""
    parameters = float(tables.model_parameters[model])
    trained, frozen = parameters, 0.0
    if job.precision.lora_rank > 0:
        trained, frozen = float(tables.model_lora[model]), parameters * scalar(tables, "weight_bytes")
    return (
        frozen + trained * scalar(tables, "weight_bytes"),
        trained * scalar(tables, "gradient_bytes"),
        trained * scalar(tables, "optimizer_bytes"),
    )


def _least_scale(tables: CostTables, phase: str) -> float:
    return float(tables.calibration[:, PHASES.index(phase), 0].min())


def _per_type(tables: CostTables, values: Ints) -> Ints:
    """Sum over the nodes of every type; ``values`` are ``[N, ...]``."""
    result = np.zeros((len(tables.type_flops), *values.shape[1:]), dtype=np.int64)
    np.add.at(result, tables.node_type, values)
    return result


def _replica_intervals(most: int) -> Ints:
    """Intervals (fewest, most) of numbers of replicas; single numbers where they are small."""
    found = []
    low = 1
    while low <= most:
        high = low if low <= MOST_REPLICAS_EXACT else min(most, int(low * REPLICA_STEP))
        found.append((low, high))
        low = high + 1
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def _slots(tables: CostTables, replicas: Ints) -> Ints:
    """How often the nodes of every type hold a stage of the fewest replicas, ``[T, R, Y]``."""
    result = [
        _per_type(tables, tables.node_devices[:, None] // degree // replicas[None, :, 0]).T for degree in TENSOR_DEGREES
    ]
    return np.ascontiguousarray(result, dtype=np.int64)


def _rings_inside(tables: CostTables, replicas: Ints) -> Floats:
    """Terms of a ring of the fewest replicas inside a node, ``[operation, R, Y, 3]``."""
    ranks = np.minimum(replicas[:, 0], tables.node_collective.shape[2] - 1)
    result = np.full((len(OPERATIONS), len(ranks), len(tables.type_flops), 3), np.inf)
    for node, kind in enumerate(tables.node_type.tolist()):
        result[:, :, kind] = np.minimum(result[:, :, kind], tables.node_collective[node][:, ranks])
    return result


def _best_links(tables: CostTables) -> tuple[Floats, Floats]:
    """Least latency and largest bandwidth from a node of every type to another node, ``[Y]`` each."""
    latency, bandwidth = np.full(len(tables.type_flops), np.inf), np.zeros(len(tables.type_flops))
    alone = np.eye(len(tables.node_type), dtype=np.bool_)
    np.minimum.at(latency, tables.node_type, np.where(alone, np.inf, tables.link_latency).min(axis=1))
    np.maximum.at(bandwidth, tables.node_type, np.where(alone, 0.0, tables.link_bandwidth).max(axis=1))
    return latency, bandwidth


def _host_bandwidth(tables: CostTables) -> Floats:
    """Host memory bandwidth of the nodes that n devices of each type may lie on, ``[Y, n]``."""
    by_type = [
        np.sort(tables.node_host_memory[tables.node_type == kind])[::-1] for kind in range(len(tables.type_flops))
    ]
    result = np.zeros((len(by_type), max(len(each) for each in by_type) + 1))
    for row, each in zip(result, by_type, strict=True):
        row[1:] = each.sum()
        row[1 : len(each) + 1] = np.cumsum(each)
    return result
