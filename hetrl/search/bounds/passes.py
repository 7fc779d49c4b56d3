"""What the bounds of single tasks share: seconds of layers by device type, and work spread over tensor groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.collectives import OPERATIONS
from hetrl.cost.tables import SCALARS, TENSOR_DEGREES, CostTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
PIPELINES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Pipeline lengths of the declared space."""
ALL_REDUCES_PER_LAYER = 2


def scalar(tables: CostTables, name: str) -> float:
    """Return a scalar of the lowered job."""
    return float(tables.scalars[SCALARS.index(name)])


def collective_inside(tables: CostTables, operation: str, ranks: int, num_bytes: float) -> Floats:
    """Return the fewest seconds of a collective inside a node of each type, ``[Y]``."""
    terms = tables.node_collective[:, OPERATIONS.index(operation), min(ranks, tables.node_collective.shape[2] - 1)]
    seconds = terms[:, 0] + terms[:, 1] * np.sqrt(num_bytes) + terms[:, 2] * num_bytes
    least = np.full(len(tables.type_flops), np.inf)
    np.minimum.at(least, tables.node_type, seconds)
    return least


def most_tensor_groups(tables: CostTables, degree: int) -> Ints:
    """Return how many tensor groups of every type the fleet has, ``[Y]``, since no group leaves its node."""
    most = np.zeros(len(tables.type_flops), dtype=np.int64)
    np.add.at(most, tables.node_type, tables.node_devices // degree)
    return most


def types_for(tables: CostTables, index: int) -> Bools:
    """Return which device types may run a task, ``[Y]``."""
    return np.asarray(tables.type_supported >> tables.task_kind[index] & 1, dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Seconds of one micro-batch through the model's parts on one tensor group, by type.

    Parameters
    ----------
    layers
        ``[Y, K]``: seconds of one layer of every kind, without communication.
    reduces
        ``[Y]``: tensor-parallel all-reduces of one layer and one pass.
    head
        ``[Y]``.
    counts
        ``[K]``: layers of every kind.
    """

    layers: Floats
    reduces: Floats
    head: Floats
    counts: Ints

    def weighted(self, compute: Floats, times_reduced: float) -> Floats:
        """Return parts ``[Y, K + 1]`` with compute scaled by ``[Y]`` and so many all-reduces; the head comes last."""
        layers = compute[:, None] * self.layers + times_reduced * self.reduces[:, None]
        return np.concatenate([layers, (compute * self.head)[:, None]], axis=1)

    @property
    def weights(self) -> Floats:
        """How often every part occurs."""
        return np.append(self.counts, 1).astype(np.float64)


def pass_of(tables: CostTables, model: int, degree_index: int, shape: int, num_bytes: float) -> Pass:
    """Return the seconds of a pass with micro-batches of shape ``shape``, whose hidden states have ``num_bytes``."""
    kinds = int(tables.model_kinds[model])
    reduces = np.zeros(len(tables.type_flops))
    if degree_index:
        reduces = ALL_REDUCES_PER_LAYER * collective_inside(
            tables, "all_reduce", TENSOR_DEGREES[degree_index], num_bytes
        )
    return Pass(
        layers=tables.layer_seconds[model, :, degree_index, shape, :kinds],
        reduces=reduces,
        head=tables.head_seconds[model, :, degree_index, shape],
        counts=tables.kinds_before[model, :kinds, tables.model_layers[model]].astype(np.int64),
    )


def rates(parts: Floats, weights: Floats, usable: NDArray[np.bool_]) -> tuple[float, Floats]:
    """Work of a whole model in seconds of the best type's layers, and every type's speed relative to it.

    Types may specialise in the parts that suit them, so parts have prices: a type earns at most what it earns on its
    best part, and no prices make all work worth more than all types earn. Here layers of the heaviest kind have a
    price, and other parts the highest one at which no type earns more on them than on those layers.
    """
    totals = np.where(usable, parts @ weights, np.inf)
    reference = int(np.argmin(totals))
    if not np.isfinite(totals[reference]):
        return np.inf, np.zeros(len(usable))
    heaviest = int(np.argmax(np.where(weights > 0, parts[reference] * weights, 0.0)))
    able = usable & np.isfinite(parts[:, heaviest])
    relative = parts[able] / parts[able, heaviest, None]
    worth = parts[reference, heaviest] * relative.min(axis=0)
    speed = np.zeros(len(usable))
    speed[able] = parts[reference, heaviest] / parts[able, heaviest]
    return float(worth @ weights), speed
