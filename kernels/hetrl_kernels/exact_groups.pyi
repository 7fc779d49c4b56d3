import numpy as np
from numpy.typing import NDArray

from hetrl_kernels.fronts import ExactFinder
from hetrl_kernels.options import Option

class GroupColumns:
    found: list[tuple[Option, ...]]
    overflow: bool
    stopped: bool
    visits: int
    def __init__(
        self,
        finder: ExactFinder,
        tasks: tuple[int, ...],
        counts: bytes,
        fronts: dict[int, list[Option]],
        pairs: dict[tuple[int, int], list[tuple[Option, Option]]],
        phase_of: NDArray[np.int32],
        limits: NDArray[np.float64],
        max_columns: int,
        deadline: float,
    ) -> None: ...
    def run(self) -> list[tuple[Option, ...]]: ...
