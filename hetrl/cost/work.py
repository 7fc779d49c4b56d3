"""What an operator has to do on a chip: its dimensions, the terms of its roofline, the features of its residual.

A term is the time, in seconds, that a part of the work would take at the datasheet's peak: arithmetic, memory traffic
(``memory`` all of it, ``spill`` where it exceeds the last-level cache, ``quantize`` that of turning 16-bit activations
into narrower operands of a GEMM, a kernel before it), and for attention what limits it when there is
little work: thread blocks that queue for multiprocessors (``blocks``, and ``waves`` at the length of one block), a walk
over the sequence that one block does alone, and keys and values written to their cache. Everything is an array over
shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DIMENSIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gemm": ("m", "n", "k"),
        "attention_prefill": ("batch", "heads", "kv_heads", "head_dim", "seq_len"),
        "attention_decode": ("batch", "heads", "kv_heads", "head_dim", "kv_len"),
        "memory": ("bytes",),
        "memory_embedding": ("bytes",),
        "memory_norm": ("bytes",),
        "memory_rotary": ("bytes",),
        "memory_activation": ("bytes",),
        "memory_add": ("bytes",),
    }
)
"""Dimensions of every operator, in the order of its arrays. ``gemm`` is ``C[m,n] = A[m,k] B[k,n]``."""

TERMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gemm": ("compute", "memory", "quantize"),
        "attention_prefill": ("compute", "memory", "spill", "walk", "blocks", "cache", "waves"),
        "attention_decode": ("compute", "memory", "blocks", "walk"),
        **{name: ("memory",) for name in DIMENSIONS if name.startswith("memory")},
    }
)

POWERS: Mapping[str, float] = MappingProxyType({"attention_prefill": 1.5, "attention_decode": 1.5})
"""How terms overlap (see `hetrl.cost.fitted.Roofline`), where not as usual: the kernels of attention run one after the
other, so that its terms add up more than they hide each other."""
DEFAULT_POWER = 4.0
NUM_SERIAL: Mapping[str, int] = MappingProxyType({"gemm": 1})
"""How many of an operator's last terms are a kernel of their own, whose time adds to that of all others."""

BLOCK_SECONDS = 1e-6
"""Unit of the ``blocks`` term: one microsecond per round of thread blocks over all multiprocessors."""
SPILL_POWER = 6
"""How suddenly traffic goes to memory as it outgrows the last-level cache: half of it does at the cache's size."""
WALK_SECONDS_PER_TOKEN = 1e-9
"""Unit of the ``walk`` term: one nanosecond per token of the sequence."""
GEMM_TILES = ((128, 128), (64, 64), (128, 256), (256, 128))
PREFILL_TILES = (64, 128)
BLOCK_ROWS = 128
"""Query rows of a thread block of prefill; the heads that share keys and values are packed into its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Datasheet figures of a device that operators depend on.

    Parameters
    ----------
    flops_per_second
        Dense peak of the operator's dtype.
    memory_bytes_per_second
        Bandwidth of device memory.
    num_multiprocessors
        Streaming multiprocessors, compute units or cores: what a grid of tiles is spread over.
    l2_bytes
        Last-level cache.
    """

    flops_per_second: float
    memory_bytes_per_second: float
    num_multiprocessors: int
    l2_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Amounts of one operator over N shapes: dims ``[D, N]``, FLOPs and bytes ``[N]``, terms in seconds ``[T, N]``."""

    operator: str
    dims: Array
    flops: Array
    bytes: Array
    terms: Array

    @property
    def datasheet_seconds(self) -> Array:
        """Pure datasheet roofline: the longer of arithmetic and memory traffic at peak."""
        names = TERMS[self.operator]
        return np.asarray(
            self.terms[[names.index(name) for name in ("compute", "memory") if name in names]].max(axis=0)
        )


def work_of(operator: str, dims: Array, dtype_bytes: float, chip: Chip) -> Work:
    """Amounts of ``dims`` (``[D, N]``, ordered as in `DIMENSIONS`) on a chip.

    Causal prefill counts half the square, rounded up to tiles of 64 (a single core computes no padding); its blocks
    hold `BLOCK_ROWS` query rows of a key-value head. A GEMM of less than 16 bits (fp8: ``dtype_bytes`` 1) quantizes its
    activations first, and writes bf16 results.
    """
    if operator == "gemm":
        m, n, k = dims
        flops = 2.0 * m * n * k
        num_bytes = dtype_bytes * (m * k + n * k) + max(dtype_bytes, 2.0) * m * n
        quantized = (2.0 + dtype_bytes) * m * k if dtype_bytes < 2 else np.zeros_like(m)
        extra = [quantized / chip.memory_bytes_per_second]
    elif operator == "attention_prefill":
        batch, heads, kv_heads, head_dim, seq_len = dims
        tile = PREFILL_TILES[0] if chip.num_multiprocessors > 1 else 1
        padded = np.ceil(seq_len / tile) * tile
        flops = 2.0 * batch * heads * padded * (padded + tile) * head_dim
        num_bytes = dtype_bytes * batch * seq_len * head_dim * (2 * heads + 2 * kv_heads)
        rounds = np.ceil(batch * kv_heads * np.ceil(seq_len * heads / kv_heads / BLOCK_ROWS) / chip.num_multiprocessors)
        block_flops = 4.0 * BLOCK_ROWS * (seq_len / 2 + 64) * head_dim
        extra = [
            num_bytes / (1.0 + (chip.l2_bytes / num_bytes) ** SPILL_POWER) / chip.memory_bytes_per_second,
            WALK_SECONDS_PER_TOKEN * seq_len,
            BLOCK_SECONDS * rounds,
            2.0 * dtype_bytes * batch * kv_heads * seq_len * head_dim / chip.memory_bytes_per_second,
            rounds * block_flops * chip.num_multiprocessors / chip.flops_per_second,
        ]
    elif operator == "attention_decode":
        batch, heads, kv_heads, head_dim, kv_len = dims
        flops = 4.0 * batch * heads * kv_len * head_dim
        num_bytes = dtype_bytes * batch * head_dim * (2 * heads + 2 * kv_heads * kv_len)
        extra = [BLOCK_SECONDS * batch * kv_heads / chip.num_multiprocessors, WALK_SECONDS_PER_TOKEN * kv_len]
    else:
        num_bytes = dims[0]
        return Work(
            operator=operator,
            dims=dims,
            flops=np.zeros_like(num_bytes),
            bytes=num_bytes,
            terms=(num_bytes / chip.memory_bytes_per_second)[None, :],
        )
    terms = np.stack([flops / chip.flops_per_second, num_bytes / chip.memory_bytes_per_second, *extra])
    return Work(operator=operator, dims=dims, flops=flops, bytes=num_bytes, terms=terms)


def features(work: Work, roofline_seconds: Array, engine: Array, chip: Chip) -> Array:
    """Features of ``log(time / roofline)``, shape ``[N, F]``: sizes, what bounds them, how they fill waves.

    ``engine`` is the index of the software that runs the kernels (see `hetrl.cost.operators.ENGINES`).
    """
    dims, sms = work.dims, chip.num_multiprocessors
    columns = [np.log(roofline_seconds), engine, work.bytes / chip.l2_bytes]
    columns += list(np.log(np.maximum(work.terms / roofline_seconds, 1e-9)))
    if work.operator.startswith("memory"):
        return np.stack([*columns, np.log2(work.bytes)], axis=1)
    columns += [np.log2(work.flops), np.log2(work.bytes), np.log2(work.flops / work.bytes)]
    if work.operator == "gemm":
        m, n, k = dims
        columns += [np.log2(m), np.log2(n), np.log2(k), np.log2(m * n), np.log2(n * k), np.log2(m * k)]
        for rows, cols in GEMM_TILES:
            columns += _waves(np.ceil(m / rows) * np.ceil(n / cols), sms)
        columns += [m / (np.ceil(m / 128) * 128), n / (np.ceil(n / 128) * 128)]
    else:
        batch, heads, kv_heads, _, length = dims
        columns += [np.log2(batch)]
        if work.operator == "attention_decode":  # trees of prefill learn head counts by heart, and guess between them
            columns += [np.log2(heads)]
        columns += [np.log2(kv_heads), np.log2(length), np.log2(heads / kv_heads)]
        columns += [np.log2(batch * heads), np.log2(batch * kv_heads)]
        if work.operator == "attention_prefill":
            per_head = heads / kv_heads * length
            for rows in PREFILL_TILES:
                packed = batch * kv_heads * np.ceil(per_head / rows)
                columns += [*_waves(batch * heads * np.ceil(length / rows), sms), np.log2(packed), *_waves(packed, sms)]
            columns += [length / (np.ceil(length / 128) * 128), np.log2(per_head)]
            columns += [np.log2(batch * kv_heads * length), np.log2(batch * heads * length)]
        columns += [*_waves(batch * kv_heads, sms), *_waves(batch * heads, sms)]
    return np.stack(columns, axis=1)


def _waves(tiles: Array, num_multiprocessors: int) -> list[Array]:
    """Fill of the last wave, and number of waves (at most 64)."""
    waves = tiles / num_multiprocessors
    return [waves / np.ceil(waves), np.minimum(np.ceil(waves), 64.0)]
