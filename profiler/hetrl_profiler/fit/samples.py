"""Measurements of one operator as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.operators import ENGINES
from hetrl.cost.work import DIMENSIONS, Array, Chip, Work, work_of
from hetrl.spec.devices import DTYPE_BYTES

GROUP_DIMENSIONS = {
    "gemm": ("n", "k"),
    "attention_prefill": ("heads", "kv_heads"),
    "attention_decode": ("heads", "kv_heads"),
}
"""Dimensions that make a shape unseen as a whole: all rows that share them stay on one side of a split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """N measurements of one operator in one dtype on one device.

    Parameters
    ----------
    operator, dtype, device
        What was measured on which device (catalogue name, or the source's own).
    chip
        Datasheet figures.
    dims
        Dimensions, ``[D, N]``.
    seconds
        Measured time, ``[N]``.
    engine
        Index into `hetrl.cost.operators.ENGINES`, ``[N]``.
    sources
        Where the measurements come from.
    """

    operator: str
    dtype: str
    device: str
    chip: Chip
    dims: Array
    seconds: Array
    engine: NDArray[np.int64]
    sources: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def work(self) -> Work:
        """Amounts of every shape."""
        return work_of(self.operator, self.dims, DTYPE_BYTES[self.dtype], self.chip)

    @property
    def engines(self) -> tuple[str, ...]:
        """Engines present, in the order of `ENGINES`."""
        return tuple(ENGINES[code] for code in np.unique(self.engine))

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Samples:
        """Rows chosen by a mask or by indices."""
        return Samples(
            operator=self.operator,
            dtype=self.dtype,
            device=self.device,
            chip=self.chip,
            dims=self.dims[:, chosen],
            seconds=self.seconds[chosen],
            engine=self.engine[chosen],
            sources=self.sources,
        )

    def groups(self) -> NDArray[np.int64]:
        """Return the number of each row's group (see `GROUP_DIMENSIONS`); single shapes where an operator has none."""
        names = DIMENSIONS[self.operator]
        rows = [names.index(name) for name in GROUP_DIMENSIONS.get(self.operator, names)]
        _, index = np.unique(self.dims[rows], axis=1, return_inverse=True)
        return np.asarray(index, dtype=np.int64).ravel()


def grouped_folds(groups: NDArray[np.int64], num_folds: int, seed: int) -> NDArray[np.int64]:
    """Fold of every row, whole groups together."""
    num_groups = int(groups.max()) + 1
    return np.random.default_rng(seed).permutation(num_groups)[groups] % num_folds


def concatenated(parts: Sequence[Samples]) -> Samples:
    """Several sets of the same operator, dtype and device as one."""
    first = parts[0]
    return Samples(
        operator=first.operator,
        dtype=first.dtype,
        device=first.device,
        chip=first.chip,
        dims=np.concatenate([part.dims for part in parts], axis=1),
        seconds=np.concatenate([part.seconds for part in parts]),
        engine=np.concatenate([part.engine for part in parts]),
        sources=tuple(sorted({source for part in parts for source in part.sources})),
    )
