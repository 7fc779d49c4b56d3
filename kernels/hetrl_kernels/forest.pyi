import numpy as np
from numpy.typing import NDArray

def predict(
    samples: NDArray[np.float64],
    roots: NDArray[np.int32],
    feature: NDArray[np.uint8],
    threshold: NDArray[np.float32],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    value: NDArray[np.float32],
    baseline: float,
) -> NDArray[np.float64]: ...
