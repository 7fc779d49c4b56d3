"""Unit costs: seconds of one layer, one output head, one decode iteration on one device type.

Each formula stands here once. Every figure is computed on first use from the operator models and kept, so that
planners and the lowered tables read the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.model import CostModel
from hetrl.spec.devices import DTYPE_BYTES, DeviceType
from hetrl.spec.job import Precision
from hetrl.spec.model import Layer, Model
from hetrl.workload.flops import (
    Projection,
    attention_projections,
    dense_projections,
    expert_projections,
    touched_experts,
)

CONCURRENCY_GRID = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Active sequences at which a decode iteration is evaluated; linear in between."""

PREFILL_CHUNK_TOKENS = 8192
"""Prompt tokens that an engine processes in one iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """Equal consecutive layers of a stage: which kind, how many."""

    kind: int
    count: int


class UnitCosts:
    """Seconds of the building blocks of every task of one job.

    Parameters
    ----------
    model
        Coefficients.
    precision
        Dtypes of the job.
    routing_exponent
        Of ``t`` tokens decoded together ``t ** routing_exponent`` choose their experts independently; 1 unless the
        sequences are alike.
    """

    def __init__(self, model: CostModel, precision: Precision, *, routing_exponent: float = 1.0) -> None:
        self.model = model
        self.precision = precision
        self.routing_exponent = routing_exponent
        self.bytes_per_element = DTYPE_BYTES[precision.dtype]
        self._layer: dict[tuple[str, str, int, int, int, float], float] = {}
        self._head: dict[tuple[str, str, str, int, float], float] = {}
        self._decode: dict[tuple[str, str, int, int], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        self._decode_head: dict[tuple[str, str, str, int], NDArray[np.float64]] = {}
        self._stage: dict[tuple[str, str, str, int, int, int, int, float, bool], float] = {}

    def layer_kinds(self, model: Model) -> tuple[tuple[Layer, ...], tuple[int, ...]]:
        """Distinct layers of a model, and for every layer the index of its kind."""
        return model.layer_kinds

    def runs(self, model: Model, first_layer: int, num_layers: int) -> tuple[LayerRun, ...]:
        """How often each kind of layer occurs in a stage."""
        kinds, index = model.layer_kinds
        if len(kinds) == 1:
            return (LayerRun(kind=0, count=num_layers),)
        stage = index[first_layer : first_layer + num_layers]
        return tuple(LayerRun(kind=kind, count=stage.count(kind)) for kind in range(len(kinds)) if kind in stage)

    # --- forward passes over whole sequences -------------------------------------------------------------------

    def layer_forward_seconds(
        self, device: DeviceType, model: Model, kind: int, tensor_parallel: int, num_sequences: int, tokens: float
    ) -> float:
        """Seconds of one layer's forward pass on one rank, without communication."""
        key = (device.name, model.name, kind, tensor_parallel, num_sequences, tokens)
        if key not in self._layer:
            self.prepare_layers(device, model, kind, tensor_parallel, [(num_sequences, tokens)])
        return self._layer[key]

    def prepare_layers(
        self, device: DeviceType, model: Model, kind: int, tensor_parallel: int, shapes: Sequence[tuple[int, float]]
    ) -> None:
        """Work out a layer's forward pass for several micro-batches (sequences, tokens of each) at once."""
        layer = self.layer_kinds(model)[0][kind]
        sequences = np.array([count for count, _ in shapes], dtype=np.float64)
        tokens = np.array([length for _, length in shapes], dtype=np.float64)
        seconds = self._projections_seconds(device, model, layer, tensor_parallel, sequences * tokens)
        attention = self.model.operator(device, "attention_prefill", self.precision.dtype)
        seconds = (
            seconds
            + attention.predict(
                batch=sequences,
                heads=max(1, layer.num_heads // tensor_parallel),
                kv_heads=max(1, layer.num_kv_heads // tensor_parallel),
                head_dim=layer.head_dim,
                seq_len=np.round(tokens),
            ).seconds
        )
        for (count, length), each in zip(shapes, seconds.tolist(), strict=True):
            self._layer[(device.name, model.name, kind, tensor_parallel, count, length)] = each

    def head_seconds(self, device: DeviceType, model: Model, tensor_parallel: int, num_tokens: float) -> float:
        """Seconds of the output head's forward pass on one rank; a scalar head is one pass over the hidden states."""
        key = (device.name, model.name, model.head, tensor_parallel, num_tokens)
        if key not in self._head:
            self.prepare_heads(device, model, tensor_parallel, [num_tokens])
        return self._head[key]

    def prepare_heads(
        self, device: DeviceType, model: Model, tensor_parallel: int, num_tokens: Sequence[float]
    ) -> None:
        """Work out the output head for several numbers of tokens at once."""
        tokens = np.array(num_tokens, dtype=np.float64)
        if model.head == "lm":
            width = -(-model.vocab_size // tensor_parallel)
            gemm = self.model.operator(device, "gemm", self.precision.dtype)
            seconds = gemm.predict(m=tokens, n=width, k=model.hidden_size).seconds
        else:
            memory = self.model.operator(device, "memory", self.precision.dtype)
            seconds = memory.predict(bytes=tokens * model.hidden_size * self.bytes_per_element).seconds
        for count, each in zip(num_tokens, seconds.tolist(), strict=True):
            self._head[(device.name, model.name, model.head, tensor_parallel, count)] = each

    def stage_forward_seconds(
        self,
        device: DeviceType,
        model: Model,
        tensor_parallel: int,
        first_layer: int,
        num_layers: int,
        num_sequences: int,
        tokens: float,
        *,
        all_logits: bool = True,
    ) -> float:
        """Seconds of a stage's forward pass on one rank, without communication.

        The last stage includes the output head for all tokens, or for the last token of each sequence only.
        """
        key = (
            device.name,
            model.name,
            model.head,
            tensor_parallel,
            first_layer,
            num_layers,
            num_sequences,
            tokens,
            all_logits,
        )
        if key not in self._stage:
            seconds = sum(
                run.count * self.layer_forward_seconds(device, model, run.kind, tensor_parallel, num_sequences, tokens)
                for run in self.runs(model, first_layer, num_layers)
            )
            if first_layer + num_layers == model.num_layers:
                head_tokens = num_sequences * tokens if all_logits else num_sequences
                seconds += self.head_seconds(device, model, tensor_parallel, head_tokens)
            self._stage[key] = seconds
        return self._stage[key]

    def _projections_seconds(
        self,
        device: DeviceType,
        model: Model,
        layer: Layer,
        tensor_parallel: int,
        tokens: NDArray[np.float64],
        independent: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Seconds of all projections and memory-bound operators of a layer for several token counts.

        As many tokens as ``independent`` says (by default all) choose their experts independently.
        """
        gemm = self.model.operator(device, "gemm", self.precision.dtype)
        memory = self.model.operator(device, "memory", self.precision.dtype)
        dense = attention_projections(model.hidden_size, layer) + dense_projections(model.hidden_size, layer)
        total = np.zeros(len(tokens))
        m, n, k, weight = _gemm_rows(dense, tokens, tensor_parallel)
        experts = expert_projections(model.hidden_size, layer)
        independent = tokens if independent is None else independent
        if experts:
            touched = np.array([max(1.0, touched_experts(layer, float(count))) for count in independent])
            per_expert = np.maximum(1.0, tokens * layer.experts_per_token / touched)
            expert_rows = _gemm_rows(experts, per_expert, tensor_parallel)
            m, n, k = (np.concatenate(pair) for pair in zip((m, n, k), expert_rows[:3], strict=True))
            weight = np.concatenate([weight, np.tile(touched, len(experts))])
        seconds = gemm.predict(m=m, n=n, k=k).seconds * weight
        total += seconds.reshape(-1, len(tokens)).sum(axis=0)
        total += memory.predict(
            bytes=tokens * memory_bound_bytes_per_token(model, layer, tensor_parallel, self.bytes_per_element)
        ).seconds
        return total

    # --- decoding -----------------------------------------------------------------------------------------------

    def decode_table(
        self, device: DeviceType, model: Model, tensor_parallel: int, kind: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """One layer's decode iteration on the concurrency grid: projections, and attention per two context lengths.

        Returns
        -------
        projections
            Seconds without attention, shape ``[len(CONCURRENCY_GRID)]``.
        attention
            Seconds of attention at contexts 128 and 4096 tokens, shape ``[2, len(CONCURRENCY_GRID)]``; linear in
            the context in between and beyond.
        """
        key = (device.name, model.name, tensor_parallel, kind)
        if key not in self._decode:
            layer = self.layer_kinds(model)[0][kind]
            grid = np.array(CONCURRENCY_GRID, dtype=np.float64)
            independent = grid**self.routing_exponent
            projections = self._projections_seconds(device, model, layer, tensor_parallel, grid, independent)
            decode = self.model.operator(device, "attention_decode", self.precision.dtype)
            attention = np.stack(
                [
                    decode.predict(
                        batch=grid,
                        heads=max(1, layer.num_heads // tensor_parallel),
                        kv_heads=max(1, layer.num_kv_heads // tensor_parallel),
                        head_dim=layer.head_dim,
                        kv_len=min(context, layer.window or context),
                    ).seconds
                    for context in DECODE_CONTEXTS
                ]
            )
            self._decode[key] = (projections, attention)
        return self._decode[key]

    def decode_layer_seconds(
        self,
        device: DeviceType,
        model: Model,
        tensor_parallel: int,
        kind: int,
        active: NDArray[np.float64],
        context: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Seconds of one layer for one new token of each of ``active`` sequences at mean ``context`` tokens."""
        projections, attention = self.decode_table(device, model, tensor_parallel, kind)
        grid = np.array(CONCURRENCY_GRID, dtype=np.float64)
        seconds = np.interp(active, grid, projections)
        short, long = (np.interp(active, grid, row) for row in attention)
        low, high = DECODE_CONTEXTS
        slope = np.maximum(long - short, 0.0) / (high - low)
        window = self.layer_kinds(model)[0][kind].window
        seen = np.minimum(context, window) if window else context
        return np.asarray(seconds + np.maximum(short + slope * (seen - low), 0.0))

    def decode_head_seconds(
        self, device: DeviceType, model: Model, tensor_parallel: int, active: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Seconds of the output head for ``active`` tokens."""
        key = (device.name, model.name, model.head, tensor_parallel)
        if key not in self._decode_head:
            counts = [float(count) for count in CONCURRENCY_GRID]
            self.prepare_heads(device, model, tensor_parallel, counts)
            self._decode_head[key] = np.array(
                [self.head_seconds(device, model, tensor_parallel, count) for count in counts]
            )
        return np.asarray(np.interp(active, np.array(CONCURRENCY_GRID, dtype=np.float64), self._decode_head[key]))


DECODE_CONTEXTS = (128, 4096)
"""Context lengths at which decode attention is evaluated; it is linear in the context."""


def _gemm_rows(
    projections: Sequence[Projection], tokens: NDArray[np.float64], tensor_parallel: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Rows (m, n, k, weight) of all projections for all token counts, projection-major."""
    shards = [projection.sharded(tensor_parallel) for projection in projections]
    m = np.tile(tokens, len(shards))
    n = np.repeat([float(n) for n, _ in shards], len(tokens))
    k = np.repeat([float(k) for _, k in shards], len(tokens))
    return m, n, k, np.ones_like(m)


def memory_bound_bytes_per_token(model: Model, layer: Layer, tensor_parallel: int, bytes_per_element: int) -> float:
    """Bytes that norms, residual additions, rotary embedding and activation functions read and write per token.

    Two norms (read, write) and two residual additions (two reads, a write): 10 hidden elements; rotary embedding
    reads and writes queries and keys; the activation function reads gate and up and writes one.
    """
    rotary = 2 * (layer.num_heads + layer.num_kv_heads) * layer.head_dim / tensor_parallel
    width = (
        layer.intermediate_size + layer.shared_intermediate_size + layer.experts_per_token * layer.moe_intermediate_size
    )
    activation = (3 if layer.gated else 2) * width / tensor_parallel
    return bytes_per_element * (10 * model.hidden_size + rotary + activation)
