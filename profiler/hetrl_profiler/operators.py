"""Single operators as torch runs them, over operands that turn through a pool larger than the last-level cache."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hetrl_profiler.device import ProfiledDevice
from hetrl_profiler.shapes import Shape
from hetrl_profiler.timing import Operation

if TYPE_CHECKING:
    import torch

NORM_WIDTH = 4096
POOL_CACHES = 3
"""The pool is this many times the last-level cache."""


class OperandPool:
    """Random numbers from which operands are cut, each call at another place: weights and KV caches come in cold."""

    def __init__(self, device: ProfiledDevice, max_elements: int) -> None:
        import torch

        element_size = torch.empty((), dtype=device.torch_dtype).element_size()
        cold = POOL_CACHES * device.last_level_cache_bytes // element_size
        self.device = device
        self._numbers = torch.rand(max(cold, max_elements), device=device.torch_device).to(device.torch_dtype)
        self._start = 0

    def cut(self, *size: int) -> torch.Tensor:
        """Return the next part of the pool in this shape; it starts over at the end."""
        num_elements = 1
        for each in size:
            num_elements *= each
        if self._start + num_elements > len(self._numbers):
            self._start = 0
        part = self._numbers[self._start : self._start + num_elements]
        self._start += num_elements
        return part.view(*size)

    def rotating(self, *size: int) -> list[torch.Tensor]:
        """Operands that together are as large as the pool (at most 512 of them)."""
        num_elements = 1
        for each in size:
            num_elements *= each
        return [self.cut(*size) for _ in range(max(1, min(512, len(self._numbers) // num_elements)))]

    def new(self, *size: int) -> torch.Tensor:
        """Memory of its own, warm: what the operator before has just written."""
        import torch

        return torch.rand(*size, device=self.device.torch_device).to(self.device.torch_dtype)


def operation(operator: str, shape: Shape, pool: OperandPool) -> Operation:
    """Return the call that runs an operator once.

    Parameters
    ----------
    operator
        ``gemm``, ``attention_prefill``, ``attention_decode``, ``memory`` or ``memory_norm``.
    shape
        In the order of `hetrl.cost.work.DIMENSIONS`.
    """
    whole = [int(each) for each in shape]
    if operator == "gemm":
        return _gemm(pool, whole)
    if operator == "memory":
        return _memory(pool, whole[0])
    if operator == "memory_norm":
        return _norm(pool, whole[0])
    return _attention(pool, whole, is_prefill=operator == "attention_prefill")


def _gemm(pool: OperandPool, shape: Sequence[int]) -> Operation:
    import torch.nn.functional as F

    m, n, k = shape
    inputs = pool.new(m, k)
    weights = itertools.cycle(pool.rotating(n, k))
    return lambda _: F.linear(inputs, next(weights))


def _memory(pool: OperandPool, num_bytes: int) -> Operation:
    """Two reads and a write: ``out = a + b``."""
    import torch

    elements = max(1, num_bytes // (3 * pool.new(1).element_size()))
    operands = itertools.cycle(pool.rotating(3, elements))

    def add(_: int) -> None:
        a, b, out = next(operands)
        torch.add(a, b, out=out)

    return add


def _norm(pool: OperandPool, num_bytes: int) -> Operation:
    """RMS norm over rows of `NORM_WIDTH` elements: a read and a write."""
    import torch.nn.functional as F

    weight = pool.new(NORM_WIDTH)
    rows = max(1, num_bytes // (2 * NORM_WIDTH * weight.element_size()))
    inputs = itertools.cycle(pool.rotating(rows, NORM_WIDTH))
    return lambda _: F.rms_norm(next(inputs), (NORM_WIDTH,), weight, eps=1e-6)


def _attention(pool: OperandPool, shape: Sequence[int], *, is_prefill: bool) -> Operation:
    import torch.nn.functional as F

    batch, heads, kv_heads, head_dim, length = shape
    queries = pool.new(batch, heads, length if is_prefill else 1, head_dim)
    keys_values = itertools.cycle(pool.rotating(2, batch, kv_heads, length, head_dim))

    def attend(_: int) -> torch.Tensor:
        keys, values = next(keys_values)
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=is_prefill, enable_gqa=heads != kv_heads)

    return attend
