"""Canonical masks: boolean, True = may attend, broadcastable to (B, H, T, S).

Every implementation builds these natively, in its own ``masks`` module; the parity check compares bit for bit.
``mask_formats`` converts the masks of other libraries.
"""

import numpy as np

from triglot.shared.arrays import Bools


def padding(valid: Bools) -> Bools:
    """Return which source tokens are real, for every head and query: (B, S) -> (B, 1, 1, S)."""
    return valid[:, None, None, :]


def causal(length: int) -> Bools:
    """Return what each position sees, itself and what came before: (1, 1, T, T), True on and below the diagonal."""
    return np.tri(length, dtype=np.bool_)[None, None]


def combine(left: Bools, right: Bools) -> Bools:
    """Return what both masks allow, broadcast."""
    return left & right


def all_masks(valid: Bools) -> dict[str, Bools]:
    """Return the three masks that a model can build from ``valid`` (B, S), by name."""
    pad, past = padding(valid), causal(valid.shape[1])
    return {"padding": pad, "causal": past, "combined": combine(pad, past)}
