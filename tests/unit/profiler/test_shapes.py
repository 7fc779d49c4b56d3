"""Choice of shapes: inside the limits, spread out, repeatable."""

from __future__ import annotations

import numpy as np
import pytest

from hetrl_profiler.points import QUICK
from hetrl_profiler.shapes import as_amounts, candidates, most_informative


@pytest.mark.parametrize("operator", ["gemm", "attention_prefill", "attention_decode", "memory"])
def test_candidates_keep_the_limits(operator: str) -> None:
    found = candidates(operator, 1, max_flops=1e8, max_bytes=1e7, dtype_bytes=4)
    assert len(found) > 50 and len(set(found)) == len(found)
    assert found == candidates(operator, 1, max_flops=1e8, max_bytes=1e7, dtype_bytes=4)
    for shape in found:
        named = as_amounts(operator, shape)
        if operator == "gemm":
            m, n, k = shape
            assert 2 * m * n * k <= 1e8 and 4 * (m * n + n * k + m * k) <= 1e7
        if operator.startswith("attention"):
            assert named["heads"] % named["kv_heads"] == 0


def test_a_quick_profile_measures_about_sixty_shapes() -> None:
    assert sum(QUICK.num_shapes.values()) == 60


def test_the_farthest_shape_comes_first() -> None:
    pool = [(1.0, 1.0), (2.0, 1.0), (1024.0, 1.0), (32.0, 1024.0)]
    assert most_informative(pool, [(1.0, 1.0)], 2) == [(32.0, 1024.0), (1024.0, 1.0)]


def test_chosen_shapes_leave_smaller_gaps_than_the_first_ones() -> None:
    pool = candidates("gemm", 3, max_flops=1e9, max_bytes=1e8, dtype_bytes=4)

    def largest_gap(chosen: list[tuple[float, ...]]) -> float:
        logs, points = np.log(np.array(pool)), np.log(np.array(chosen))
        return float(np.min(((logs[:, None] - points[None]) ** 2).sum(axis=2), axis=1).max())

    assert largest_gap(most_informative(pool, [], 40)) < largest_gap(pool[:40])
    assert most_informative(pool, pool, 0) == []
