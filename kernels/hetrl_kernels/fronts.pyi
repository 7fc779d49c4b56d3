import numpy as np
from numpy.typing import NDArray

from hetrl_kernels.finder import Finder
from hetrl_kernels.options import Option
from hetrl_kernels.tables import Tables

class ExactFinder(Finder):
    hosts_matter: bool
    def __init__(
        self,
        tables: Tables,
        allowed: NDArray[np.int32],
        engine_limit: int,
        slack: NDArray[np.float64],
        far: NDArray[np.float64],
        leads: NDArray[np.int32],
        node_class: NDArray[np.int32],
    ) -> None: ...
    def declared(self, task: int, counts: bytes, trainer: Option | None = None) -> list[Option]: ...
    def front(self, task: int, counts: bytes, cutoff: float) -> list[Option]: ...
    def shared_pairs(
        self, trainer: int, scorer: int, counts: bytes, train_cutoff: float, score_cutoff: float
    ) -> list[tuple[Option, Option]]: ...
    def fastest(self, task: int, counts: bytes) -> float: ...
    def fastest_shared(self, scorer: int, trainer: int, counts: bytes) -> float: ...
    def least_sync(self, task: int, counts: bytes) -> float: ...
    def sync_floor(self, option: Option) -> float: ...
