"""Short names for array types, and the number formats of weights. NumPy has no bfloat16; ``ml_dtypes`` adds it."""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bools = NDArray[np.bool_]
Int32s = NDArray[np.int32]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]

BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
LARGEST_BFLOAT16 = np.float32((2 - 2.0**-7) * 2.0**127)  # slightly below the largest float32
LARGEST_FLOAT16 = np.float32(65504)

_PANEL = 32  # columns

# The formats that weights can be stored in.
FLOATS: dict[str, np.dtype[Any]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
}

# The 16-bit formats. Weights and inputs are rounded to them before anything is computed.
HALVES = ("bfloat16", "float16")


def representable(array: Array, dtype: str) -> Float32s:
    """Return ``array`` in float32, rounded to numbers that ``dtype`` can hold: the values that a model in it gets."""
    with np.errstate(over="ignore"):  # callers judge overflows themselves
        return array.astype(FLOATS[dtype] if dtype in HALVES else np.float32).astype(np.float32)


def as_received(value: Array, dtype: str) -> Array:
    """Return a value as a step that computes in ``dtype`` receives it."""
    return value.astype(np.float64) if dtype == "float64" else representable(value, dtype)


def storable(array: Array) -> Array:
    """Return the same bits in a format that NumPy can write: bfloat16 as uint16."""
    return array.view(np.uint16) if array.dtype == BFLOAT16 else array


def in_c_order(array: Array) -> Array:
    """Return the same numbers in C order, without a copy if they already are."""
    if array.ndim != 2 or array.flags.c_contiguous or not array.flags.f_contiguous:
        return np.asarray(array, order="C")
    # A transposed matrix. NumPy copies it four times as fast in panels that fit into the cache.
    copy = np.empty(array.shape, array.dtype)
    for start in range(0, array.shape[1], _PANEL):
        copy[:, start : start + _PANEL] = array[:, start : start + _PANEL]
    return copy
