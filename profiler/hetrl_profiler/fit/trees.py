"""Gradient-boosted trees, flattened into a `Forest`."""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from hetrl.cost.fitted import Forest
from hetrl.cost.work import Array

NUM_TREES = 300
LEARNING_RATE = 0.08
MAX_LEAVES = 31
MIN_SAMPLES_LEAF = 5
FEATURE_SHARE = 0.5
"""Features looked at per split: halves the scatter of predictions beyond the data."""


def fit_forest(samples: Array, targets: Array, *, num_trees: int = NUM_TREES, max_leaves: int = MAX_LEAVES) -> Forest:
    """Fit trees to ``targets`` (``[N]``) by absolute error; ``samples`` are ``[N, F]``."""
    regressor = HistGradientBoostingRegressor(
        loss="absolute_error",
        max_iter=num_trees,
        learning_rate=LEARNING_RATE,
        max_leaf_nodes=max_leaves,
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
