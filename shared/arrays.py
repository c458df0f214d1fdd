"""Short names for the array types of the shared code."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bools = NDArray[np.bool_]
Int32s = NDArray[np.int32]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
