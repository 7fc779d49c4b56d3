import numpy as np
from numpy.typing import NDArray

from hetrl_kernels.finder import Finder
from hetrl_kernels.options import Option

def recombine(
    finder: Finder,
    tasks: tuple[int, ...],
    counts: bytes,
    lists: dict[int, list[Option]],
    pairs: dict[tuple[int, int], list[tuple[Option, Option]]],
    phase_of: NDArray[np.int32],
    floors: NDArray[np.float64],
    limit: float,
    max_visits: int,
) -> tuple[Option, ...] | None: ...
