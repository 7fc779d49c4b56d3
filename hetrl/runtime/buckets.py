"""Weights packed into flat buffers, so that an update is a few large transfers instead of one per tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The tensors of one buffer, in order; all of one dtype.

    Parameters
    ----------
    dtype
        Torch's name, e.g. ``float32``.
    names, shapes
        One entry per tensor.
    """

    dtype: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def num_elements(self) -> int:
        """Elements of the buffer."""
        return sum(math.prod(shape) for shape in self.shapes)

    def split(self, buffer: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, view into the buffer)."""
        start = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            end = start + math.prod(shape)
            yield name, buffer[start:end].view(shape)
            start = end


def pack(tensors: Iterable[tuple[str, torch.Tensor]], max_bytes: int) -> list[Bucket]:
    """Group tensors, in order, into buckets of one dtype and at most ``max_bytes`` (a larger tensor is alone)."""
    buckets: list[Bucket] = []
    names: list[str] = []
    shapes: list[tuple[int, ...]] = []
    dtype, num_bytes = "", 0

    def close() -> None:
        if names:
            buckets.append(Bucket(dtype=dtype, names=tuple(names), shapes=tuple(shapes)))
        names.clear()
        shapes.clear()

    for name, tensor in tensors:
        its_dtype = str(tensor.dtype).removeprefix("torch.")
        its_bytes = tensor.numel() * tensor.element_size()
        if its_dtype != dtype or num_bytes + its_bytes > max_bytes:
            close()
            dtype, num_bytes = its_dtype, 0
        names.append(name)
        shapes.append(tuple(tensor.shape))
        num_bytes += its_bytes
    close()
    return buckets
