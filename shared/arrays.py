"""The types of arrays that the shared code handles, under short names."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bools = NDArray[np.bool_]
Int32s = NDArray[np.int32]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
