import numpy as np
from numpy.typing import NDArray

from hetrl_kernels.layouts import Devices
from hetrl_kernels.options import Option

def relocated(option: Option, to: NDArray[np.int32], devices: Devices) -> Option: ...
