"""Fitted functions as plain arrays, evaluated with numpy alone: roofline, tree ensemble, kernel correction, intervals.

They are fitted in `hetrl_profiler.fit`; here they are only read and applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetrl.cost.work import DEFAULT_POWER, Array
from hetrl_kernels.forest import predict as predict_forest


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """``seconds = offset + (sum_i (c_i term_i)^power)^(1/power) + sum_j c_j term_j``.

    Parameters
    ----------
    offset_seconds
        Launch and fixed cost.
    coefficients
        One per term of the operator; 1 / coefficient is the efficiency of the compute and the memory term.
    power
        How terms overlap: 1 adds them up, a large one takes their maximum, with a rounded corner between them.
    num_serial
        How many of the last terms (``j``) overlap with nothing.
    """

    offset_seconds: float
    coefficients: tuple[float, ...]
    power: float = DEFAULT_POWER
    num_serial: int = 0

    def seconds(self, terms: Array) -> Array:
        """Seconds of terms ``[T, N]``."""
        scaled = terms * np.asarray(self.coefficients)[:, None]
        split = len(scaled) - self.num_serial
        largest = np.maximum(scaled[:split].max(axis=0), 1e-30)
        joint = largest * ((scaled[:split] / largest) ** self.power).sum(axis=0) ** (1.0 / self.power)
        return np.asarray(self.offset_seconds + joint + scaled[split:].sum(axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Sum of regression trees, flattened: the trees' nodes one after the other.

    A leaf points to itself, so that walking ``depth`` steps from the roots ends in the leaves. A sample goes left
    where its feature is at most the threshold.

    Parameters
    ----------
    baseline
        Added to the sum.
    depth
        Longest path.
    roots
        First node of every tree, shape ``[T]``.
    feature, threshold, left, right, value
        Per node, shape ``[M]``.
    """

    baseline: float
    depth: int
    roots: NDArray[np.int32]
    feature: NDArray[np.uint8]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: NDArray[np.float32]

    def predict(self, samples: Array) -> Array:
        """Value of each sample, ``[N, F]`` -> ``[N]``."""
        return np.asarray(
            predict_forest(
                np.ascontiguousarray(samples, dtype=np.float64),
                self.roots,
                self.feature,
                self.threshold,
                self.left,
                self.right,
                self.value,
                self.baseline,
            )
        )

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Arrays to store; children are relative to their node, which compresses better."""
        own = np.arange(len(self.feature), dtype=np.int32)
        return {
            "forest_head": np.array([self.baseline, self.depth]),
            "forest_roots": self.roots,
            "forest_feature": self.feature,
            "forest_threshold": self.threshold,
            "forest_left": (self.left - own).astype(np.uint16),
            "forest_right": (self.right - own).astype(np.uint16),
            "forest_value": self.value,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Forest:
        """Inverse of `to_arrays`; ValueError if an index points outside."""
        feature = np.asarray(arrays["forest_feature"], dtype=np.uint8)
        own = np.arange(len(feature), dtype=np.int32)
        roots = np.asarray(arrays["forest_roots"], dtype=np.int32)
        left = own + np.asarray(arrays["forest_left"], dtype=np.int32)
        right = own + np.asarray(arrays["forest_right"], dtype=np.int32)
        threshold = np.asarray(arrays["forest_threshold"], dtype=np.float32)
        value = np.asarray(arrays["forest_value"], dtype=np.float32)
        if not len(feature) == len(left) == len(right) == len(threshold) == len(value):
            raise ValueError("arrays of a tree ensemble differ in length")
        if len(feature) and max(left.max(), right.max(), roots.max(initial=0)) >= len(feature):
            raise ValueError("a tree points outside its nodes")
        baseline, depth = (float(number) for number in np.asarray(arrays["forest_head"], dtype=np.float64))
        return cls(
            baseline=baseline, depth=min(int(depth), 64), roots=roots, feature=feature,
            threshold=threshold, left=left, right=right, value=value,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCorrection:
    """Gaussian-process mean over few measured points: what a device adds to the residual of known ones.

    Parameters
    ----------
    points
        Scaled coordinates of the measured shapes, ``[P, D]``.
    weights
        Dual coefficients, ``[P]``.
    center, scale
        Scaling of the coordinates, ``[D]``.
    linear
        Weight of the linear kernel beside the squared-exponential one.
    """

    points: Array
    weights: Array
    center: Array
    scale: Array
    linear: float

    def predict(self, coordinates: Array) -> Array:
        """Correction of ``log(time)``, ``[N, D]`` -> ``[N]``; only as far as the data reach, constant beyond."""
        scaled = (coordinates - self.center) / self.scale
        scaled = np.clip(scaled, self.points.min(axis=0), self.points.max(axis=0))
        return np.asarray(kernel(scaled, self.points, self.linear) @ self.weights)

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Arrays to store."""
        return {
            "kernel_points": self.points,
            "kernel_weights": self.weights,
            "kernel_scaling": np.stack([self.center, self.scale]),
            "kernel_linear": np.array([self.linear]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> KernelCorrection:
        """Inverse of `to_arrays`."""
        center, scale = np.asarray(arrays["kernel_scaling"], dtype=np.float64)
        return cls(
            points=np.asarray(arrays["kernel_points"], dtype=np.float64),
            weights=np.asarray(arrays["kernel_weights"], dtype=np.float64),
            center=center,
            scale=scale,
            linear=float(np.asarray(arrays["kernel_linear"], dtype=np.float64)[0]),
        )


def kernel(a: Array, b: Array, linear: float) -> Array:
    """``exp(-|a-b|^2 / 2) + linear (1 + a.b)`` for all pairs, ``[N, D], [P, D] -> [N, P]``."""
    product = a @ b.T
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2.0 * product
    return np.asarray(np.exp(-0.5 * np.maximum(squared, 0.0)) + linear * (1.0 + product))


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """10 % and 90 % quantiles of ``log(measured / predicted)`` on held-out groups, by bins of the roofline time.

    Parameters
    ----------
    edges_seconds
        Inner edges of B bins, ``B - 1`` values.
    low, high
        Quantiles per bin, ``B`` values each.
    extrapolated
        The two quantiles where a shape lies outside the measured range.
    """

    edges_seconds: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    extrapolated: tuple[float, float]

    def bounds(self, roofline_seconds: Array, extrapolated: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Log factors of the lower and the upper end."""
        index = np.searchsorted(np.asarray(self.edges_seconds), roofline_seconds)
        low = np.where(extrapolated, self.extrapolated[0], np.asarray(self.low)[index])
        high = np.where(extrapolated, self.extrapolated[1], np.asarray(self.high)[index])
        return low, high
