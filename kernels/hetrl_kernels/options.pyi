import numpy as np
from numpy.typing import NDArray

from hetrl_kernels.tables import Tables

class Option:
    task: int
    micro_batch: int
    recompute: int
    sharding: int
    weights: int
    optimizer: int
    seconds: float
    @property
    def degree(self) -> int: ...
    def shares(self) -> list[int]: ...
    def stages(self) -> list[list[tuple[int, int]]]: ...
    def kv_tokens(self) -> list[float]: ...
    def node_bytes(self) -> dict[int, tuple[float, float, float, float]]: ...

class Finder:
    cuts: dict[str, int]
    kept: dict[int, tuple[int, list[list[tuple[int, int]]]]]
    num_candidates: int
    num_costed: int
    def __init__(self, tables: Tables, allowed: NDArray[np.int32], max_options: int, engine_limit: int) -> None: ...
    def exact_shares(self, option: Option) -> list[int]: ...
