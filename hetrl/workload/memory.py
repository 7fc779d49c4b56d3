"""Bytes on a device and on its host, term by term.

The terms follow the planning problem's page (docs/formulation.md): training state by dtype and sharding,
activations of the micro-batches in flight on a stage (flash attention; arXiv 2205.05198 adjusted for grouped-query
attention and gated MLPs), logits on the last stage, KV cache by layer, and allowances for what engines and
communication libraries take. Memory is sized for the longest sequences, time for the mean ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hetrl.spec.devices import DTYPE_BYTES
from hetrl.spec.job import Precision
from hetrl.spec.model import Layer, Model
from hetrl.units import GIB
from hetrl.workload.flops import lora_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowances:
    """Memory that no formula explains: measured or reported once, then added everywhere.

    Parameters
    ----------
    process_bytes
        Context of the driver and the framework, once per process on a device.
    engine_bytes
        Workspace and captured graphs of an inference engine.
    communication_bytes
        Buffers of the communication library, for tasks that span devices.
    fragmentation
        Fraction added to activations, which come and go in varying sizes.
    host_process_bytes
        Host RAM of one worker process.
    """

    process_bytes: int
    engine_bytes: int
    communication_bytes: int
    fragmentation: float
    host_process_bytes: int


GPU_ALLOWANCES = Allowances(
    process_bytes=int(0.75 * GIB),
    engine_bytes=int(1.5 * GIB),
    communication_bytes=int(0.75 * GIB),
    fragmentation=0.10,
    host_process_bytes=int(4.0 * GIB),
)
CPU_ALLOWANCES = Allowances(  # fragmentation: measured by benchmarks/memory_peaks.py
    process_bytes=int(0.6 * GIB),
    engine_bytes=int(0.6 * GIB),
    communication_bytes=int(0.05 * GIB),
    fragmentation=0.20,
    host_process_bytes=0,
)


def allowances(vendor: str) -> Allowances:
    """Return the allowances of a device vendor; on a CPU the device memory is the host memory."""
    return CPU_ALLOWANCES if vendor == "cpu" else GPU_ALLOWANCES


ALLOCATOR_SHARE = 0.01
"""What the host's allocator takes beside large arrays on a CPU, as a share of them (benchmarks/memory_peaks.py)."""

ENGINE_ALLOCATOR_SHARE = 0.03
"""The same for an inference engine, whose peak varied by 1 % from run to run and once exceeded a share of 1 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStateBytesPerParameter:
    """Bytes per trained parameter: weights, gradients, optimizer states."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of it; 16 for bf16 mixed AdamW."""
        return self.weights + self.gradients + self.optimizer


def train_state_bytes_per_parameter(precision: Precision) -> TrainStateBytesPerParameter:
    """Return bytes per parameter; reduced-precision weights need an fp32 master copy beside the two AdamW moments."""
    weights = DTYPE_BYTES[precision.dtype]
    moments = {"adamw": 8, "sgd": 0}[precision.optimizer]
    master = 0 if precision.dtype in ("fp32", "tf32") else 4
    gradients = weights if precision.dtype in ("fp32", "tf32") else DTYPE_BYTES[precision.gradient_dtype]
    return TrainStateBytesPerParameter(weights=weights, gradients=gradients, optimizer=moments + master)


def layer_counts(model: Model, first_layer: int, num_layers: int) -> list[tuple[Layer, int]]:
    """Distinct layers of a stage with how often each occurs."""
    kinds, index = model.layer_kinds
    if len(kinds) == 1:
        return [(kinds[0], num_layers)]
    stage = index[first_layer : first_layer + num_layers]
    return [(kinds[kind], stage.count(kind)) for kind in range(len(kinds)) if kind in stage]


def stage_parameters(model: Model, first_layer: int, num_layers: int) -> int:
    """Parameters of a pipeline stage; the first holds the embedding, the last the head (a tied head again)."""
    before = model.parameters_before
    total = before[min(first_layer + num_layers, model.num_layers)] - before[first_layer]
    if first_layer == 0:
        total += model.embedding_parameters
    if first_layer + num_layers == model.num_layers:
        total += model.final_norm_parameters + model.head_parameters
        if model.tied_embeddings and first_layer > 0 and model.head == "lm":
            total += model.embedding_parameters
    return total


def activation_bytes_per_token(
    model: Model, layer: Layer, tensor_parallel: int, *, bytes_per_element: int = 2, eager: bool = False
) -> float:
    """Bytes kept for the backward pass by one layer and one token, with flash attention and without recomputation.

    Inputs of norms and projections stay whole on every rank (10 bytes per hidden element in two-byte precision,
    fp32 norm statistics included); queries, keys, values, attention output and MLP intermediates are divided by the
    tensor degree. A plain 4h MLP with full heads gives the ``10 + 24/T`` of arXiv 2205.05198.

    ``eager`` is for PyTorch without fused operators: a norm keeps its input, the normalised input and its output; keys
    and values are expanded to all heads; attention's output is kept twice; the activation function keeps its input
    and output beside the product (benchmarks/memory_peaks.py).
    """
    heads = layer.num_heads * (layer.head_dim + layer.v_head_dim) + layer.num_kv_heads * (
        layer.head_dim + layer.v_head_dim
    )
    width = (
        layer.intermediate_size + layer.shared_intermediate_size + layer.experts_per_token * layer.moe_intermediate_size
    )
    mlp = (3 if layer.gated else 2) * width
    replicated = 5 * model.hidden_size + layer.num_experts
    if eager:
        heads = layer.num_heads * (2 * layer.head_dim + 3 * layer.v_head_dim)
        mlp += width
        replicated += model.hidden_size
    return bytes_per_element * (replicated + (heads + mlp) / tensor_parallel)


def stage_activation_bytes(
    model: Model,
    *,
    first_layer: int,
    num_layers: int,
    tensor_parallel: int,
    micro_batch_size: int,
    tokens: int,
    micro_batches_in_flight: int,
    recompute: bool,
    bytes_per_element: int = 2,
    eager: bool = False,
) -> float:
    """Activation bytes of a training stage at its peak, logits included on the last stage.

    With recomputation a layer keeps only its input, and one layer at a time is expanded. An eager loss holds a
    gradient of every logit beside it.
    """
    size = bytes_per_element
    per_token = [
        (activation_bytes_per_token(model, layer, tensor_parallel, bytes_per_element=size, eager=eager), count)
        for layer, count in layer_counts(model, first_layer, num_layers)
    ]
    batch_tokens = micro_batch_size * tokens
    if recompute:
        kept = float(num_layers * bytes_per_element * model.hidden_size * batch_tokens * micro_batches_in_flight)
        expanded = max(each for each, _ in per_token) * batch_tokens
    else:
        kept = sum(each * count for each, count in per_token) * batch_tokens * micro_batches_in_flight
        expanded = 0.0
    logits = 0.0
    if first_layer + num_layers == model.num_layers and model.head == "lm":
        logits = logits_bytes(model, micro_batch_size * tokens, tensor_parallel, bytes_per_element=size)
        logits *= 2 if eager else 1
    return kept + expanded + logits


def optimizer_workspace_bytes(model: Model, bytes_per_element: int = 4) -> float:
    """Bytes that a parameter-by-parameter AdamW step takes beside its states: three times the largest matrix."""
    layer = model.layers[0]
    width = max(layer.intermediate_size, layer.moe_intermediate_size, layer.num_heads * layer.head_dim)
    largest = model.hidden_size * max(model.vocab_size, width)
    return 3.0 * largest * bytes_per_element


def logits_bytes(model: Model, num_tokens: float, tensor_parallel: int, *, bytes_per_element: int = 2) -> float:
    """Bytes of vocabulary logits, in their own precision and once more in fp32 for the loss."""
    return num_tokens * math.ceil(model.vocab_size / tensor_parallel) * (bytes_per_element + 4)


def kv_bytes_per_token(
    model: Model, *, first_layer: int, num_layers: int, tensor_parallel: int, bytes_per_element: int = 2
) -> float:
    """KV-cache bytes of one token on one rank; key/value heads are replicated below one per rank, latents always."""
    total = 0.0
    for layer, count in layer_counts(model, first_layer, num_layers):
        if layer.kv_is_latent:
            total += count * layer.kv_elements_per_token
        else:
            per_head = layer.kv_elements_per_token / layer.num_kv_heads
            total += count * per_head * max(1, math.ceil(layer.num_kv_heads / tensor_parallel))
    return total * bytes_per_element


def scoring_activation_bytes(
    model: Model,
    *,
    tensor_parallel: int,
    micro_batch_size: int,
    tokens: int,
    last_stage: bool,
    bytes_per_element: int = 2,
) -> float:
    """Activation bytes of a forward pass without gradients: one layer at a time, and the logits on the last stage."""
    layer = model.widest_layer
    batch_tokens = micro_batch_size * tokens
    total = (
        activation_bytes_per_token(model, layer, tensor_parallel, bytes_per_element=bytes_per_element) * batch_tokens
    )
    if last_stage and model.head == "lm":
        total += logits_bytes(model, batch_tokens, tensor_parallel, bytes_per_element=bytes_per_element)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """Bytes of one training rank: weights, gradients and optimizer states, and how many of them a host may take."""

    weights: float
    gradients: float
    optimizer: float


def train_state(
    model: Model,
    precision: Precision,
    *,
    first_layer: int,
    num_layers: int,
    tensor_parallel: int,
    num_replicas: int,
    sharding: str,
) -> TrainState:
    """Training state of one rank of a stage.

    ZeRO-1 divides optimizer states by the replicas, FSDP everything. LoRA keeps the base frozen in the weight dtype
    and trains the adapters only.
    """
    parameters = stage_parameters(model, first_layer, num_layers) / tensor_parallel
    each = train_state_bytes_per_parameter(precision)
    trained = parameters
    frozen = 0.0
    if precision.lora_rank > 0:
        trained = lora_parameters(model, precision.lora_rank) * num_layers / model.num_layers / tensor_parallel
        frozen = parameters * each.weights
    optimizer_ranks = num_replicas if sharding in ("zero1", "fsdp") else 1
    all_ranks = num_replicas if sharding == "fsdp" else 1
    return TrainState(
        weights=(frozen + trained * each.weights) / all_ranks,
        gradients=trained * each.gradients / all_ranks,
        optimizer=trained * each.optimizer / optimizer_ranks,
    )
