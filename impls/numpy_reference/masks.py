"""Attention masks, True where a query may attend, and softmax functions with and without a mask.

Shapes: B batch, T target length, S source length, H heads.
"""

import numpy as np
from numpy import ndarray

from triglot.impls import numpy_nn as nn
from triglot.shared.model.config import ModelConfig


def padding(valid: ndarray) -> ndarray:
    """Hide padding: turn ``valid``, bool (B, S), True for real tokens, into a mask (B, 1, 1, S)."""
    return valid[:, None, None, :]


def causal(length: int) -> ndarray:
    """Let each position attend to itself and to earlier positions: (1, 1, T, T)."""
    return np.tri(length, dtype=np.bool_)[None, None]


def combine(left: ndarray, right: ndarray) -> ndarray:
    """Allow what both masks allow."""
    return left & right


def masked_softmax(scores: ndarray, allowed: ndarray, bias: ndarray | None, config: ModelConfig) -> ndarray:
    """Return the attention weights of scores, both (B, H, T, S). The mask and the bias broadcast to the scores.

    The mask acts as ``config.masking`` says: "exclude" makes masked weights exactly 0, even in a row where nothing is
    allowed, "fill" replaces a masked score by the masking value, and "add" adds the masking value to it. The value and
    the sum are at least the lowest finite number, so that no row is ever NaN. Everything runs in float32 or wider,
    because a 16-bit sum of a score and a large masking value would lose the score.
    """
    if bias is not None:
        scores = scores + bias
    minimum = masking_value = float(np.finfo(np.real(scores).dtype).min)
    if config.masking_value is not None:
        masking_value = max(masking_value, config.masking_value)
    if config.masking == "add":
        scores = np.where(allowed, scores, np.maximum(scores, minimum - masking_value) + masking_value)
    else:
        scores = np.where(allowed, scores, masking_value)
    weights = nn.softmax(scores)
    if config.masking == "exclude":
        weights = np.where(allowed, weights, 0.0)
    return weights


def log_softmax(x: ndarray) -> ndarray:
    """Return the log-softmax over the last axis, computed in float32 or wider."""
    return nn.log_softmax(x)
