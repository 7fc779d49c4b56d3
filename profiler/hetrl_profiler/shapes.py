"""Which shapes are measured: a quasi-random set that fills the log of every dimension, within a limit of work.

Further points are chosen where most is to be learned: the candidate farthest from all measured ones, which is where
the fitted kernel's variance is largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.work import DIMENSIONS, Chip, work_of

NUM_CANDIDATES = 4096
HEAD_DIMS = (32.0, 64.0, 128.0)
KV_SHARES = (1, 2, 4, 8)
_UNIT = Chip(flops_per_second=1.0, memory_bytes_per_second=1.0, num_multiprocessors=1, l2_bytes=1.0)

Shape = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Where shapes of an operator are drawn from.

    Parameters
    ----------
    low, high
        Smallest and largest value of each drawn dimension.
    steps
        Values are rounded to multiples of these.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    steps: tuple[float, ...]


REGIONS: MappingProxyType[str, Region] = MappingProxyType(
    {
        "gemm": Region(low=(1, 64, 64), high=(4096, 65536, 16384), steps=(1, 32, 32)),
        "attention_prefill": Region(low=(1, 1, 16), high=(64, 32, 4096), steps=(1, 1, 8)),
        "attention_decode": Region(low=(1, 1, 16), high=(256, 32, 4096), steps=(1, 1, 8)),
        "memory": Region(low=(2**12,), high=(2**28,), steps=(64,)),
        "memory_norm": Region(low=(2**15,), high=(2**28,), steps=(2**15,)),
    }
)
"""Drawn dimensions: m, n, k of a GEMM; batch, heads, length of attention; bytes of a memory-bound operator."""


def candidates(operator: str, seed: int, *, max_flops: float, max_bytes: float, dtype_bytes: float) -> list[Shape]:
    """Quasi-random shapes (Sobol) within the limits, in the order of `hetrl.cost.work.DIMENSIONS`."""
    from scipy.stats import qmc

    region = REGIONS[operator]
    sobol = qmc.Sobol(len(region.low) + (2 if operator.startswith("attention") else 0), seed=seed)
    points = sobol.random(NUM_CANDIDATES)
    low, high, steps = (np.array(each, dtype=np.float64) for each in (region.low, region.high, region.steps))
    drawn = np.exp(np.log(low) + points[:, : len(low)] * np.log(high / low))
    drawn = np.clip(np.round(drawn / steps), 1, None) * steps
    shapes = [
        _whole(operator, row.tolist(), point[len(low) :].tolist()) for row, point in zip(drawn, points, strict=True)
    ]
    work = work_of(operator, np.array(shapes).T, dtype_bytes, _UNIT)
    fits = (work.flops <= max_flops) & (work.bytes <= max_bytes)
    return list(dict.fromkeys(shape for shape, good in zip(shapes, fits, strict=True) if good))


def _whole(operator: str, drawn: Sequence[float], extra: Sequence[float]) -> Shape:
    if not operator.startswith("attention"):
        return tuple(drawn)
    batch, heads, length = drawn
    shares = [share for share in KV_SHARES if heads % share == 0]
    kv_heads = heads / shares[int(extra[0] * len(shares))]
    return (batch, heads, kv_heads, HEAD_DIMS[int(extra[1] * len(HEAD_DIMS))], length)


def most_informative(pool: Sequence[Shape], measured: Sequence[Shape], number: int) -> list[Shape]:
    """Choose `number` shapes of the pool, one after the other, each farthest (log scale) from all before it."""
    if not pool:
        return []
    logs = np.log(np.array(pool, dtype=np.float64))
    spread = np.maximum(logs.max(axis=0) - logs.min(axis=0), 1e-9)
    logs = logs / spread
    if measured:
        known = np.log(np.array(measured, dtype=np.float64)) / spread
        distance = np.min(((logs[:, None] - known[None]) ** 2).sum(axis=2), axis=1)
    else:
        distance = ((logs - logs.mean(axis=0)) ** 2).sum(axis=1).max() - ((logs - logs.mean(axis=0)) ** 2).sum(axis=1)
    chosen: list[int] = []
    for _ in range(min(number, len(pool))):
        best = int(np.argmax(distance))
        chosen.append(best)
        own: NDArray[np.float64] = ((logs - logs[best]) ** 2).sum(axis=1)
        distance = own if not measured and len(chosen) == 1 else np.minimum(distance, own)
    return [pool[index] for index in chosen]


def as_amounts(operator: str, shape: Shape) -> dict[str, float]:
    """Dimension -> value."""
    return dict(zip(DIMENSIONS[operator], shape, strict=True))
