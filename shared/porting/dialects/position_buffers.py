"""Position tables that a state dict holds as buffers: compared with the right numbers, then computed, never kept."""

import numpy as np

from triglot.shared.arrays import Array, Float32s, Float64s
from triglot.shared.dtypes import FLOATS
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.positions import TABLES

_ROUNDING = 2.0**-24  # of a number below 1 in float32


def table(config: ModelConfig, length: int) -> Float32s:
    """What code in float32 would hold at best: the table in float64, rounded once, (1, length, D)."""
    return _exact(config, length)[None].astype(np.float32)


def difference(config: ModelConfig, buffer: Array) -> tuple[float, float]:
    """The largest difference of ``buffer`` (1, length, D) from the table, and the bound of the row that it is in.

    If the difference is beyond the bound of any row, it is that one. NaN is infinitely far.

    The bound. Code in float32 multiplies a position p with a frequency w = exp(-x), x = i / D ln 10000. The product is
    rounded once, the exponential once, and x twice, which the exponential turns into a relative error of 2x roundings:
    (2 + 2x) roundings of the angle p exp(-x), at most 2p for any x. Sine and cosine pass it on and add up to 2 of their
    own. So row p is within (2p + 2) 2^-24: 6e-6 at length 50, 6.1e-5 at 512; half of that is what is found. A buffer
    that was rounded to 16 bits is off by half a unit of its format besides.
    """
    exact = _exact(config, buffer.shape[1])
    found = np.nan_to_num(np.abs(buffer[0].astype(np.float64) - exact).max(axis=1), nan=np.inf)
    bound = (2 * np.arange(len(exact)) + 2) * _ROUNDING
    if buffer.dtype in (FLOATS["float16"], FLOATS["bfloat16"]):
        bound += 2.0**-12 if buffer.dtype == FLOATS["float16"] else 2.0**-9
    beyond = found > bound
    row = int(np.argmax(np.where(beyond, found, 0) if beyond.any() else found))
    return float(found[row]), float(bound[row])


def _exact(config: ModelConfig, length: int) -> Float64s:
    return TABLES[config.positions](length, config.hidden_size)
