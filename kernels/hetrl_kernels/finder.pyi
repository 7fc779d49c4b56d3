import numpy as np
from numpy.typing import NDArray

from hetrl_kernels.options import Option
from hetrl_kernels.tables import Tables

class Finder:
    cuts: dict[str, int]
    kept: dict[int, tuple[int, list[list[tuple[int, int]]]]]
    num_candidates: int
    num_costed: int
    def __init__(self, tables: Tables, allowed: NDArray[np.int32], max_options: int, engine_limit: int) -> None: ...
    def exact_shares(self, option: Option) -> list[int]: ...
