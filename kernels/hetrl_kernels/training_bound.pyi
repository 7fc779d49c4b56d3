from typing import Any

from numpy.typing import NDArray

class TrainingBound:
    num_points: int
    def __init__(self, tables: Any) -> None: ...
    def seconds(self, counts: NDArray[Any]) -> float: ...
