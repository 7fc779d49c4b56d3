import numpy as np
from numpy.typing import NDArray

from hetrl_kernels.tables import Tables

class Devices:
    num_cells: int
    num_devices: int
    key: bytes
    def __init__(self, tables: Tables, counts: NDArray[np.int32]) -> None: ...
