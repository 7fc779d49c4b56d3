from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hetrl_kernels.groups import Steps

def anneal(
    steps: Steps,
    grouping: tuple[tuple[int, ...], ...],
    assignment: tuple[bytes, ...],
    cost: float,
    kinds: NDArray[np.int32],
    *,
    seed: int,
    num_moves: int,
    block: int,
    start_temperature: float,
    end_temperature: float,
    fixed: Callable[[tuple[int, ...], bytes], bool] | None = None,
) -> tuple[tuple[bytes, ...], float, tuple[int, int, int]]: ...
