"""Strategy classes of a training task on device counts: what they hold, and what an update costs beside pipelines.

One row per class (number of stages and of replicas), one column per point; memory rules classes out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.model import PHASES
from hetrl.cost.tables import TENSOR_DEGREES, CostTables
from hetrl.search.bounds.passes import PIPELINES, Floats, Ints, collective_inside, scalar, taken
from hetrl.spec.job import Job

MOST_UNEVEN = 24
"""Lengths tried for the longest stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes of one replica's training state, all ranks of it together, before any sharding."""

    weights: float
    gradients: float
    optimizer: float


def train_states(job: Job, tables: CostTables, model: int) -> States:
    """Training state of one replica."""
    parameters = float(tables.model_parameters[model])
    trained, frozen = parameters, 0.0
    if job.precision.lora_rank > 0:
        trained, frozen = float(tables.model_lora[model]), parameters * scalar(tables, "weight_bytes")
    return States(
        weights=frozen + trained * scalar(tables, "weight_bytes"),
        gradients=trained * scalar(tables, "gradient_bytes"),
        optimizer=trained * scalar(tables, "optimizer_bytes"),
    )


def layer_states(tables: CostTables, model: int, states: States) -> float:
    """Bytes of training state that belong to layers."""
    layers = tables.kind_parameters[model, 0] * tables.model_layers[model] / tables.model_parameters[model]
    return float((states.weights + states.gradients + states.optimizer) * min(1.0, float(layers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Bytes on one rank, fragmentation included, of one layer of the leanest kind and of one sequence.

    Parameters
    ----------
    kept
        Kept by one layer for one sequence in flight.
    parameters
        Parameters of one layer on one rank.
    first, last
        Parameters of the embedding, and of the head, on one rank.
    logits
        Of one sequence, on the last stage.
    """

    kept: float
    parameters: float
    first: float
    last: float
    logits: float


def layer_bytes(job: Job, tables: CostTables, model: int, degree_index: int, recompute: bool) -> LayerBytes:
    """Return what a layer, the ends of the model and the logits take."""
    kinds, degree = int(tables.model_kinds[model]), TENSOR_DEGREES[degree_index]
    spread = (1.0 + float(tables.type_allowance[:, 3].min())) * job.batch.max_sequence_tokens
    kept = float(tables.model_hidden_bytes[model])
    if not recompute:
        kept = float(tables.kind_activation[model, degree_index, :kinds].min())
    logits = float(tables.model_logits[model, degree_index]) * float(tables.model_is_lm[model])
    return LayerBytes(
        kept=kept * spread,
        parameters=float(tables.kind_parameters[model, :kinds].min()) / degree,
        first=float(tables.model_outside[model, 0]) / degree,
        last=float(tables.model_outside[model, 1]) / degree,
        logits=logits * spread,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """Classes (P and R, one row each) on points (one column each): memory, reduces and optimizer steps."""

    tables: CostTables
    model: int
    points: Ints
    groups: Ints
    degree: int
    stages: Ints
    fewest: Ints
    most: Ints
    states: States
    layers: LayerBytes
    size: Floats
    in_flight: Floats

    def _sharded(self, sharding: str, replicas: Ints) -> tuple[Floats, Floats, Floats]:
        """Weights, gradients and optimizer states that one replica keeps."""
        every = replicas if sharding == "fsdp" else np.ones_like(replicas)
        states = replicas if sharding != "none" else np.ones_like(replicas)
        return self.states.weights / every, self.states.gradients / every, self.states.optimizer / states

    def _best_groups(self, value: Floats) -> Floats:
        """Sum of ``value`` ``[Y]`` over the R P groups where it is largest, ``[C, K]``."""
        takes = taken(self.groups, [int(kind) for kind in np.argsort(-value, kind="stable")], self.most * self.stages)
        return np.asarray(sum(each * value[kind] for kind, each in enumerate(takes)))

    def _rooms(self) -> Floats:
        """Bytes of the roomiest device of every type beside the process."""
        limit = np.zeros(len(self.tables.type_flops))
        np.maximum.at(limit, self.tables.node_type, self.tables.node_limit)
        return np.maximum(limit - self.tables.type_allowance[:, 0], 0.0)

    def _per_parameter(self, sharding: str, on_host: bool) -> Floats:
        """Bytes of training state per parameter, ``[C]``; LoRA's adapters left out."""
        weights, gradients, optimizer = self._sharded(sharding, self.most)
        kept = weights + gradients + (0.0 if on_host else optimizer)
        return np.asarray(kept / max(1.0, float(self.tables.model_parameters[self.model])))

    def caps(self, sharding: str, on_host: bool) -> Floats:
        """Bytes that one layer takes on every stage of the replica with the most prompts, ``[C, P]``, last stage first.

        A stage of a pipeline keeps as many micro-batches as there are stages from it to the end.
        """
        flying = np.minimum(self.in_flight[:, None], np.arange(1, max(PIPELINES) + 1)[None, :])
        state = self._per_parameter(sharding, on_host)[:, None] * self.layers.parameters
        return np.asarray(state + self.layers.kept * self.size[:, None] * flying)

    def fits(self, sharding: str, on_host: bool) -> NDArray[np.bool_]:
        """Whether the states of all replicas, and all layers of the busiest one, may fit, ``[C, K]``."""
        rooms = self._rooms()
        weights, gradients, optimizer = self._sharded(sharding, self.most)
        held = self.fewest * (weights + gradients + (0.0 if on_host else optimizer)) / self.degree
        possible = held[:, None] <= self._best_groups(rooms)
        order = np.argsort(-rooms, kind="stable")
        until = np.cumsum(self.groups[:, order], axis=1)  # [K, Y]
        number = np.arange(max(PIPELINES))
        kind = (until[:, :, None] <= number[None, None, :]).sum(axis=1)  # type of the n-th roomiest group, [K, P]
        nth = np.append(rooms[order], 0.0)[kind]
        inside = number[None, :] < self.stages[:, None]
        layers = np.where(inside, 1.0 / self.caps(sharding, on_host), 0.0) @ nth.T
        return np.asarray(possible & (layers >= self.tables.model_layers[self.model]))

    def longest_stage(self, sharding: str, on_host: bool, head: Floats) -> Floats:
        """Length in layers of the longest stage where all devices are of one type, ``[C, Y]``.

        Stages have whole layers, as memory admits; the last has the head besides, as long as ``head`` ``[Y]`` layers.
        """
        room = self._rooms()
        state = self._per_parameter(sharding, on_host)[:, None]
        number = np.arange(max(PIPELINES))
        outside = np.where(number == 0, self.layers.last * state + self.layers.logits * self.size[:, None], 0.0)
        outside = outside + np.where(number == self.stages[:, None] - 1, self.layers.first * state, 0.0)
        most = np.floor((room[None, :, None] - outside[:, None, :]) / self.caps(sharding, on_host)[:, None, :])
        most = np.where(number[None, None, :] < self.stages[:, None, None], np.maximum(most, 0.0), 0.0)
        num_layers = int(self.tables.model_layers[self.model])
        length = np.broadcast_to(np.floor(num_layers / self.stages)[:, None], most.shape[:2]).astype(np.float64)
        for _ in range(MOST_UNEVEN):
            placed = np.minimum(most[..., 1:], np.floor(length)[..., None]).sum(axis=2)
            placed = placed + np.minimum(most[..., 0], np.floor(length - head + 1e-9))
            short = placed < num_layers
            if not short.any():
                break
            longer = np.minimum(np.floor(length) + 1.0, np.floor(length - head + 1e-9) + 1.0 + head)
            length = np.where(short, longer, length)
        return np.where(most.sum(axis=2) < num_layers, np.inf, length)

    def reduce_seconds(self, sharding: str, amount: float) -> Floats:
        """Gradient reduce of one update and FSDP's gathers, the mean stage on the fastest links, ``[C, K]``."""
        tables = self.tables
        rings = float(tables.calibration[:, PHASES.index("reduce"), 0].min())
        per_node = int(tables.node_devices.max()) // self.degree
        inter = ~np.eye(len(tables.node_type), dtype=np.bool_)
        bandwidth = float(tables.link_bandwidth[inter].max(initial=0.0)) / self.degree
        latency = float(tables.link_latency[inter].min(initial=np.inf))
        result = np.zeros(len(self.stages))
        for row, (stages, replicas) in enumerate(zip(self.stages.tolist(), self.fewest.tolist(), strict=True)):
            if replicas == 1:
                continue
            shard = stages * self.degree
            gradients, weights = self.states.gradients / shard, self.states.weights / shard

            def ring(operation: str, num_bytes: float, replicas: int = replicas, stages: int = stages) -> float:
                if replicas <= per_node:
                    return float(collective_inside(tables, operation, replicas, num_bytes).min())
                if bandwidth == 0.0:
                    return float("inf")
                flows = stages if len(tables.node_type) == 2 else 1
                flat = (replicas - 1) * (latency + num_bytes * flows / (replicas * bandwidth))
                return flat if operation != "all_reduce" else min(2 * flat, 2 * latency + num_bytes * flows / bandwidth)

            overlap = 1.0 - scalar(tables, "gradient_overlap")
            if sharding == "none":
                result[row] = ring("all_reduce", gradients) * overlap
                continue
            result[row] = ring("reduce_scatter", gradients) * overlap
            gathered = ring("all_gather", weights)
            if sharding == "fsdp":
                rounds = 2 * np.ceil(amount / self.most[row])
                gathered *= rounds * (1.0 - scalar(tables, "gather_overlap"))
            result[row] += gathered
        return rings * result[:, None]

    def _host_bandwidth(self) -> Floats:
        """Host memory bandwidth of the nodes that so many devices of each type may lie on, ``[K, Y]``."""
        tables = self.tables
        result = np.zeros(self.points.shape)
        for kind in range(self.points.shape[1]):
            best = np.sort(tables.node_host_memory[tables.node_type == kind])[::-1]
            sums = np.append(0.0, np.cumsum(best))
            result[:, kind] = sums[np.minimum(self.points[:, kind], len(best))]
        return result

    def optimizer_seconds(self, sharding: str, on_host: bool) -> Floats:
        """One optimizer step, states spread over ranks or nodes as well as can be, ``[C, K]``."""
        weights, gradients, optimizer = self._sharded(sharding, self.most)
        scale = float(self.tables.calibration[:, PHASES.index("optimizer"), 0].min())
        state = self.fewest * (weights + gradients + optimizer)
        if on_host:
            return np.asarray(scale * state[:, None] / self._host_bandwidth().sum(axis=1)[None, :])
        return np.asarray(scale * state[:, None] / self.degree / self._best_groups(self.tables.type_bandwidth))

    def joint_seconds(
        self,
        work: float,
        speed: Floats,
        state_bytes: float,
        by_stage: Floats,
        passing: Floats,
        updates: float,
    ) -> Floats:
        """Pipeline and host optimizer step of a single replica: both depend on which type holds which layers.

        With the fraction x_y of the model on type y, ``x_y <= z rho_y`` for the pipeline and ``x_y <= u H_y`` for the
        step; ``by_stage z + updates u`` is least at one of the ratios u / z at which a type changes sides.
        ``work``, ``speed`` and ``state_bytes`` are those of the layers alone.
        """
        pipeline = np.minimum(self.groups[None, :, :], self.stages[:, None, None]) * speed[None, None, :] / work
        host = np.broadcast_to(self._host_bandwidth()[None, :, :] / state_bytes, pipeline.shape)
        best = np.full(pipeline.shape[:2], np.inf)
        for kind in range(pipeline.shape[2]):
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = pipeline[..., kind] / host[..., kind]
                slowest = 1.0 / np.minimum(pipeline, ratio[..., None] * host).sum(axis=2)
                seconds = slowest * (by_stage + updates * ratio)
            best = np.fmin(best, np.where(np.isfinite(seconds), seconds, np.inf))
        return best + passing
