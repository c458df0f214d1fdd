"""Masks, bool, True = may attend, the softmax that obeys them, and the one that obeys none.

Shapes: B batch, T target length, S source length, H heads.
"""

import numpy as np
from numpy import ndarray

from triglot.impls import numpy_nn as nn
from triglot.shared.model.config import ModelConfig


def padding(valid: ndarray) -> ndarray:
    """Which source tokens are real: (B, S) -> (B, 1, 1, S)."""
    return valid[:, None, None, :]


def causal(length: int) -> ndarray:
    """Each position sees itself and what came before: (1, 1, T, T)."""
    return np.tri(length, dtype=np.bool_)[None, None]


def combine(left: ndarray, right: ndarray) -> ndarray:
    """What both masks allow."""
    return left & right


def masked_softmax(scores: ndarray, allowed: ndarray, bias: ndarray | None, config: ModelConfig) -> ndarray:
    """Attention weights from scores and bias, (B, H, T, S); ``config.masking`` says what becomes of forbidden scores.

    "exclude": weight exactly 0, also where nothing is allowed. "fill": the value replaces the score. "add": the
    value is added to the score. Value and sum are at least the dtype's finite minimum, so that no row is ever NaN.
    Everything runs in float32 or wider: beside a masking value, 16 bits have no digits left for the score.
    """
    if bias is not None:
        scores = scores + bias
    lowest = value = float(np.finfo(np.real(scores).dtype).min)
    if config.masking_value is not None:
        value = max(value, config.masking_value)
    if config.masking == "add":
        scores = np.where(allowed, scores, np.maximum(scores, lowest - value) + value)
    else:
        scores = np.where(allowed, scores, value)
    weights = nn.softmax(scores)
    if config.masking == "exclude":
        weights = np.where(allowed, weights, 0.0)
    return weights


def log_softmax(x: ndarray) -> ndarray:
    """The logarithm of the softmax over the last axis, in float32 or wider inside."""
    return nn.log_softmax(x)
