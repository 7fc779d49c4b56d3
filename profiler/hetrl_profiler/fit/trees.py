"""Gradient-boosted trees, flattened into a `Forest`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor

from hetrl.cost.fitted import Forest
from hetrl.cost.work import Array

T = TypeVar("T", bound=np.generic)

ABSOLUTE, SQUARED = "absolute_error", "squared_error"
"""Losses: the first is deaf to outliers, the second hears rare kernels."""


class Boosting(NamedTuple):
    """How many trees of what size for each loss, and how much of each is added; the losses' forests are averaged."""

    num_trees: int
    learning_rate: float
    max_leaves: int
    losses: tuple[str, ...] = (ABSOLUTE,)


SMALL = Boosting(num_trees=300, learning_rate=0.08, max_leaves=31)
WIDE = Boosting(num_trees=250, learning_rate=0.1, max_leaves=63)
BOTH = (ABSOLUTE, SQUARED)
CANDIDATES: Mapping[str, Boosting] = MappingProxyType(
    {
        "small, absolute": SMALL,
        "small, squared": SMALL._replace(losses=(SQUARED,)),
        "small, both": SMALL._replace(losses=BOTH),
        "wide, absolute": WIDE,
        "wide, squared": WIDE._replace(losses=(SQUARED,)),
        "wide, both": WIDE._replace(losses=BOTH),
    }
)
"""What `benchmarks.fit_study` chooses from."""
CHOSEN: Mapping[str, str] = MappingProxyType(
    {"gemm": "wide, absolute", "attention_prefill": "wide, both", "attention_decode": "wide, squared"}
)
"""Operator -> candidate, chosen by mean absolute log error on inner splits (docs/fidelity.md has the scores)."""
SERIES = Boosting(num_trees=60, learning_rate=0.08, max_leaves=31)
"""Memory-bound operators have one dimension."""
SHARED = SMALL
"""What devices have in common is coarse."""
MIN_SAMPLES_LEAF = 5
FEATURE_SHARE = 0.5
"""Features looked at per split: halves the scatter of predictions beyond the data."""


def boosting_of(operator: str) -> Boosting:
    """Trees of the residual of an operator on a device that was measured well."""
    return CANDIDATES[CHOSEN[operator]] if operator in CHOSEN else SERIES


def shared_boosting_of(operator: str) -> Boosting:
    """Trees of the residual that devices have in common."""
    return SHARED if operator in CHOSEN else SERIES


def weighted_sum(forests: Sequence[Forest], weights: Array) -> Forest:
    """One forest that predicts the weighted sum of several; those of weight 0 are left out."""
    parts = [(forest, float(weight)) for forest, weight in zip(forests, weights, strict=True) if weight > 0]
    starts = np.cumsum([0, *(len(forest.feature) for forest, _ in parts)]).astype(np.int32)

    def joined(arrays: Sequence[NDArray[T]], dtype: type[T]) -> NDArray[T]:
        return np.concatenate([np.empty(0, dtype=dtype), *arrays])

    def moved(arrays: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
        return joined([each + start for each, start in zip(arrays, starts, strict=False)], np.int32)

    return Forest(
        baseline=sum(weight * forest.baseline for forest, weight in parts),
        depth=max((forest.depth for forest, _ in parts), default=0),
        roots=moved([forest.roots for forest, _ in parts]),
        feature=joined([forest.feature for forest, _ in parts], np.uint8),
        threshold=joined([forest.threshold for forest, _ in parts], np.float32),
        left=moved([forest.left for forest, _ in parts]),
        right=moved([forest.right for forest, _ in parts]),
        value=joined([np.float32(weight) * forest.value for forest, weight in parts], np.float32),
    )


def fit_forest(samples: Array, targets: Array, boosting: Boosting = SMALL) -> Forest:
    """Fit trees to ``targets`` (``[N]``); ``samples`` are ``[N, F]``."""
    forests = [_fit_forest(samples, targets, boosting, loss) for loss in boosting.losses]
    return weighted_sum(forests, np.full(len(forests), 1.0 / len(forests)))


def _fit_forest(samples: Array, targets: Array, boosting: Boosting, loss: str) -> Forest:
    regressor = HistGradientBoostingRegressor(
        loss=loss,
        max_iter=boosting.num_trees,
        learning_rate=boosting.learning_rate,
        max_leaf_nodes=boosting.max_leaves,
        min_samples_leaf=MIN_SAMPLES_LEAF,
        max_features=FEATURE_SHARE,
        early_stopping=False,
        random_state=0,
    ).fit(samples, targets)
    nodes = [tree[0].nodes for tree in regressor._predictors]
    sizes = np.array([len(tree) for tree in nodes])
    roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
    flat = np.concatenate(nodes)
    base = np.repeat(roots, sizes)
    own = np.arange(len(flat), dtype=np.int32)
    is_leaf = flat["is_leaf"].astype(bool)
    return Forest(
        baseline=float(np.ravel(regressor._baseline_prediction)[0]),
        depth=int(flat["depth"].max()),
        roots=roots,
        feature=np.where(is_leaf, 0, flat["feature_idx"]).astype(np.uint8),
        threshold=np.where(is_leaf, 0.0, flat["num_threshold"]).astype(np.float32),
        left=np.where(is_leaf, own, base + flat["left"]).astype(np.int32),
        right=np.where(is_leaf, own, base + flat["right"]).astype(np.int32),
        value=flat["value"].astype(np.float32),
    )
