import numpy as np
from numpy.typing import NDArray

from hetrl_kernels.options import Finder, Option

class Choice:
    options: tuple[Option, ...]
    seconds: float

class Steps:
    finder: Finder
    num_costed: int
    num_combined: int
    num_screened: int
    def __init__(
        self,
        finder: Finder,
        fluid: NDArray[np.float64],
        latency: NDArray[np.float64],
        fixed: NDArray[np.float64],
        dollars: bool,
        most_dollars: float = ...,
    ) -> None: ...
    def group(self, tasks: tuple[int, ...], counts: bytes) -> Choice | None: ...
    def alone(self, task: int, counts: bytes) -> tuple[Option, ...]: ...
    def screen(self, grouping: tuple[tuple[int, ...], ...], assignment: tuple[bytes, ...]) -> float: ...
    def rank(self, grouping: tuple[tuple[int, ...], ...], assignment: tuple[bytes, ...]) -> float: ...
    def bound(self, grouping: tuple[tuple[int, ...], ...], assignment: tuple[bytes, ...]) -> float: ...
    def cost(self, grouping: tuple[tuple[int, ...], ...], assignment: tuple[bytes, ...], cutoff: float) -> float: ...
