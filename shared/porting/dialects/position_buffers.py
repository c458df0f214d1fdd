"""Position tables that a state dict holds as buffers: compared with the computed table, then left out."""

import numpy as np

from triglot.shared.arrays import Array, Float32s, Float64s
from triglot.shared.dtypes import FLOATS
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.positions import TABLES

_ROUNDING = 2.0**-24  # of a number below 1 in float32


def table(config: ModelConfig, length: int) -> Float32s:
    """Return the float64 table rounded once to float32, (1, length, D), the best that float32 code could hold."""
    return _exact(config, length)[None].astype(np.float32)


def difference(config: ModelConfig, buffer: Array) -> tuple[float, float]:
    """Return how far ``buffer`` (1, length, D) is from the table, and how far rounding explains in the same row.

    The row is the one with the largest difference, among the rows beyond their bound if there are any. NaN counts as
    infinitely far.

    The bound: float32 code multiplies a position p with a frequency w = exp(-x), x = i / D ln 10000. The product and
    the exponential are rounded once each, and x twice, which the exponential turns into a relative error of 2x
    roundings. That makes (2 + 2x) roundings of the angle p exp(-x), at most 2p for any x. Sine and cosine pass the
    error on and add up to 2 of their own. So row p is within (2p + 2) 2^-24: 6e-6 at length 50, 6.1e-5 at 512;
    measured errors are about half of that. A buffer that was rounded to 16 bits has half a unit of that format more.
    """
    exact = _exact(config, buffer.shape[1])
    errors = np.nan_to_num(np.abs(buffer[0].astype(np.float64) - exact).max(axis=1), nan=np.inf)
    bounds = (2 * np.arange(len(exact)) + 2) * _ROUNDING
    if buffer.dtype in (FLOATS["float16"], FLOATS["bfloat16"]):
        bounds += 2.0**-12 if buffer.dtype == FLOATS["float16"] else 2.0**-9
    beyond = errors > bounds
    row = int(np.argmax(np.where(beyond, errors, 0) if beyond.any() else errors))
    return float(errors[row]), float(bounds[row])


def _exact(config: ModelConfig, length: int) -> Float64s:
    return TABLES[config.positions](length, config.hidden_size)
