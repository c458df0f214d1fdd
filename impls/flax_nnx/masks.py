"""Masks, bool, True = may attend, the softmax that obeys them, and the one that obeys none.

Shapes: B batch, T target length, S source length, H heads.
"""

import jax
from jax import Array
from jax import numpy as jnp

from triglot.shared.model.config import ModelConfig


def padding(valid: Array) -> Array:
    """Which source tokens are real: (B, S) -> (B, 1, 1, S)."""
    return valid[:, None, None, :]


def causal(length: int) -> Array:
    """Each position sees itself and what came before: (1, 1, T, T)."""
    return jnp.tri(length, dtype=jnp.bool_)[None, None]


def combine(left: Array, right: Array) -> Array:
    """What both masks allow."""
    return left & right


def masked_softmax(scores: Array, allowed: Array, bias: Array | None, config: ModelConfig) -> Array:
    """Attention weights from scores and bias, (B, H, T, S); ``config.masking`` says what becomes of forbidden scores.

    "exclude": weight exactly 0, also where nothing is allowed. "fill": the value replaces the score. "add": the
    value is added to the score. Value and sum are at least the dtype's finite minimum, so that no row is ever NaN.
    Everything runs in float32 or wider: beside a masking value, 16 bits have no digits left for the score.
    """
    dtype = scores.dtype
    scores = scores.astype(jnp.promote_types(dtype, jnp.float32))
    if bias is not None:
        scores = scores + bias.astype(scores.dtype)
    lowest = value = float(jnp.finfo(scores.dtype).min)
    if config.masking_value is not None:
        value = max(value, config.masking_value)
    if config.masking == "add":
        scores = jnp.where(allowed, scores, jnp.maximum(scores, lowest - value) + value)
    else:
        scores = jnp.where(allowed, scores, value)
    weights = jax.nn.softmax(scores, axis=-1)
    if config.masking == "exclude":
        weights = jnp.where(allowed, weights, 0.0)
    return weights.astype(dtype)


def log_softmax(x: Array) -> Array:
    """The logarithm of the softmax over the last axis, in float32 or wider inside."""
    return jax.nn.log_softmax(x.astype(jnp.promote_types(x.dtype, jnp.float32))).astype(x.dtype)
