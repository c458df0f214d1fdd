"""Attention masks, True where a query may attend, and softmax functions with and without a mask.

Shapes: B batch, T target length, S source length, H heads.
"""

import paddle
from paddle import Tensor

from triglot.shared.model.config import ModelConfig


def padding(valid: Tensor) -> Tensor:
    """Hide padding: turn ``valid``, bool (B, S), True for real tokens, into a mask (B, 1, 1, S)."""
    return valid[:, None, None, :]


def causal(length: int | Tensor) -> Tensor:
    """Let each position attend to itself and to earlier positions: (1, 1, T, T)."""
    return paddle.ones([length, length], dtype="bool").tril()[None, None]


def combine(left: Tensor, right: Tensor) -> Tensor:
    """Allow what both masks allow."""
    return left & right


def exact(number: float, dtype: paddle.dtype) -> float | Tensor:
    """Return ``number`` as an operand for ``dtype``. Compiled code would round a Python number to float32."""
    return paddle.full([], number, dtype) if dtype == paddle.float64 else number


def masked_softmax(scores: Tensor, allowed: Tensor, bias: Tensor | None, config: ModelConfig) -> Tensor:
    """Return the attention weights of scores, both (B, H, T, S). The mask and the bias broadcast to the scores.

    The mask acts as ``config.masking`` says: "exclude" makes masked weights exactly 0, even in a row where nothing is
    allowed, "fill" replaces a masked score by the masking value, and "add" adds the masking value to it. The value and
    the sum are at least the lowest finite number, so that no row is ever NaN. Everything runs in float32 or wider,
    because a 16-bit sum of a score and a large masking value would lose the score.
    """
    dtype = scores.dtype
    scores = scores.astype(paddle.float64 if dtype == paddle.float64 else paddle.float32)
    if bias is not None:
        scores = scores + bias.astype(scores.dtype)
    minimum = masking_value = paddle.finfo(scores.dtype).min
    if config.masking_value is not None:
        masking_value = max(masking_value, config.masking_value)
    # Compiled code would round Python numbers to float32.
    minimum, masking_value = (paddle.full([], number, scores.dtype) for number in (minimum, masking_value))
    # When compiled, paddle.where broadcasts by adding tensors of zeros, so expand the mask. masked_fill needs no help.
    if config.masking == "add":
        scores = paddle.where(
            allowed.expand_as(scores), scores, paddle.maximum(scores, minimum - masking_value) + masking_value
        )
    else:
        scores = scores.masked_fill(~allowed, masking_value)
    weights = paddle.nn.functional.softmax(scores, axis=-1)
    if config.masking == "exclude":
        weights = weights.masked_fill(~allowed, paddle.zeros([], scores.dtype))
    return weights.astype(dtype)


def log_softmax(x: Tensor) -> Tensor:
    """Return the log-softmax over the last axis, computed in float32 or wider."""
    # Written out, because Paddle's CPU kernel returns nothing below -64.
    shifted = x - x.max(axis=-1, keepdim=True)
    return shifted - paddle.log(paddle.exp(shifted).sum(axis=-1, keepdim=True))
