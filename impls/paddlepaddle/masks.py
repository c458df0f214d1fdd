"""Masks, bool, True = may attend, the softmax that obeys them, and the one that obeys none.

Shapes: B batch, T target length, S source length, H heads.
"""

import paddle
from paddle import Tensor

from triglot.shared.model.config import ModelConfig


def padding(valid: Tensor) -> Tensor:
    """Which source tokens are real: (B, S) -> (B, 1, 1, S)."""
    return valid[:, None, None, :]


def causal(length: int) -> Tensor:
    """Each position sees itself and what came before: (1, 1, T, T)."""
    return paddle.ones([length, length], dtype="bool").tril()[None, None]


def combine(left: Tensor, right: Tensor) -> Tensor:
    """What both masks allow."""
    return left & right


def exact(number: float, dtype: paddle.dtype) -> float | Tensor:
    """``number``, to calculate with in ``dtype``: what is compiled keeps Python's numbers in float32."""
    return paddle.full([], number, dtype) if dtype == paddle.float64 else number


def masked_softmax(scores: Tensor, allowed: Tensor, bias: Tensor | None, config: ModelConfig) -> Tensor:
    """Attention weights from scores and bias, (B, H, T, S); ``config.masking`` says what becomes of forbidden scores.

    "exclude": weight exactly 0, also where nothing is allowed. "fill": the value replaces the score. "add": the
    value is added to the score. Value and sum are at least the dtype's finite minimum, so that no row is ever NaN.
    Everything runs in float32 or wider: beside a masking value, 16 bits have no digits left for the score.
    """
    dtype = scores.dtype
    scores = scores.astype(paddle.float64 if dtype == paddle.float64 else paddle.float32)
    if bias is not None:
        scores = scores + bias.astype(scores.dtype)
    lowest = value = paddle.finfo(scores.dtype).min
    if config.masking_value is not None:
        value = max(value, config.masking_value)
    # Python numbers would pass through float32.
    lowest, value = (paddle.full([], number, scores.dtype) for number in (lowest, value))
    # Where shapes differ, what is compiled of paddle.where adds tensors of zeros; masked_fill broadcasts by itself.
    if config.masking == "add":
        scores = paddle.where(allowed.expand_as(scores), scores, paddle.maximum(scores, lowest - value) + value)
    else:
        scores = scores.masked_fill(~allowed, value)
    weights = paddle.nn.functional.softmax(scores, axis=-1)
    if config.masking == "exclude":
        weights = weights.masked_fill(~allowed, paddle.zeros([], scores.dtype))
    return weights.astype(dtype)


def log_softmax(x: Tensor) -> Tensor:
    """The logarithm of the softmax over the last axis, in float32 or wider inside."""
    # Written out: Paddle's kernel for the CPU gives nothing below -64.
    shifted = x - x.max(axis=-1, keepdim=True)
    return shifted - paddle.log(paddle.exp(shifted).sum(axis=-1, keepdim=True))
