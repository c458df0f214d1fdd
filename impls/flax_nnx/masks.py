"""Attention masks, True where a query may attend, and softmax functions with and without a mask.

Shapes: B batch, T target length, S source length, H heads.
"""

import jax
from jax import Array
from jax import numpy as jnp

from triglot.shared.model.config import ModelConfig


def padding(valid: Array) -> Array:
    """Hide padding: turn ``valid``, bool (B, S), True for real tokens, into a mask (B, 1, 1, S)."""
    return valid[:, None, None, :]


def causal(length: int) -> Array:
    """Let each position attend to itself and to earlier positions: (1, 1, T, T)."""
    return jnp.tri(length, dtype=jnp.bool_)[None, None]


def combine(left: Array, right: Array) -> Array:
    """Allow what both masks allow."""
    return left & right


def masked_softmax(scores: Array, allowed: Array, bias: Array | None, config: ModelConfig) -> Array:
    """Return the attention weights of scores, both (B, H, T, S). The mask and the bias broadcast to the scores.

    The mask acts as ``config.masking`` says: "exclude" makes masked weights exactly 0, even in a row where nothing is
    allowed, "fill" replaces a masked score by the masking value, and "add" adds the masking value to it. The value and
    the sum are at least the lowest finite number, so that no row is ever NaN. Everything runs in float32 or wider,
    because a 16-bit sum of a score and a large masking value would lose the score.
    """
    dtype = scores.dtype
    scores = scores.astype(jnp.promote_types(dtype, jnp.float32))
    if bias is not None:
        scores = scores + bias.astype(scores.dtype)
    minimum = masking_value = float(jnp.finfo(scores.dtype).min)
    if config.masking_value is not None:
        masking_value = max(masking_value, config.masking_value)
    if config.masking == "add":
        scores = jnp.where(allowed, scores, jnp.maximum(scores, minimum - masking_value) + masking_value)
    else:
        scores = jnp.where(allowed, scores, masking_value)
    weights = jax.nn.softmax(scores, axis=-1)
    if config.masking == "exclude":
        weights = jnp.where(allowed, weights, 0.0)
    return weights.astype(dtype)


def log_softmax(x: Array) -> Array:
    """Return the log-softmax over the last axis, computed in float32 or wider."""
    return jax.nn.log_softmax(x.astype(jnp.promote_types(x.dtype, jnp.float32))).astype(x.dtype)
