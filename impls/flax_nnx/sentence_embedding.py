"""Sentence embeddings: one vector for each row, pooled from the output of the encoder (Reimers and Gurevych 2019).

Shapes: B batch, S length, D hidden size; in, out what a dense layer reads and returns; E the size of the embedding.
"""

from flax import nnx
from jax import Array
from jax import numpy as jnp

from triglot.shared.model.config import DenseLayer, ModelConfig
from triglot.shared.model.probe import Probe, observe, under

from .feed_forward import ACTIVATIONS

LEAST_LENGTH = 1e-12  # divides shorter vectors in place of their length


def pool_mean(x: Array, valid: Array) -> Array:
    """Return the mean of the real tokens, (B, D), computed in float32 or wider; zero if a row has none.

    x: (B, S, D). valid: bool (B, S), True for real tokens.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    total = jnp.where(valid[:, :, None], wide, 0.0).sum(axis=1)
    return (total / jnp.maximum(valid.sum(axis=1, keepdims=True), 1)).astype(x.dtype)


def pool_cls(x: Array, valid: Array) -> Array:
    """Return the first real token, (B, D); zero if a row has none. Arguments as in ``pool_mean``."""
    first = valid & (valid.cumsum(axis=1) == 1)
    return jnp.where(first[:, :, None], x, 0.0).sum(axis=1)


def pool_max(x: Array, valid: Array) -> Array:
    """Return the maximum of each dimension over the real tokens, (B, D); zero if a row has none.

    Arguments as in ``pool_mean``.
    """
    largest = jnp.where(valid[:, :, None], x, -jnp.inf).max(axis=1)
    return jnp.where(valid.any(axis=1, keepdims=True), largest, 0.0)


def normalize(x: Array) -> Array:
    """Scale each vector to length 1, computed in float32 or wider. A vector of zeros stays zero. x: (B, E)."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    length = jnp.linalg.norm(wide, axis=-1, keepdims=True)
    return (wide / jnp.maximum(length, LEAST_LENGTH)).astype(x.dtype)


def identity(x: Array) -> Array:
    """Return x, for a dense layer without an activation."""
    return x


POOLINGS = {"mean": pool_mean, "cls": pool_cls, "max": pool_max}
DENSE_ACTIVATIONS = {**ACTIVATIONS, "tanh": jnp.tanh, "none": identity}


class Dense(nnx.Module):
    """A linear layer and an activation. ``size`` is the size of its input."""

    def __init__(self, size: int, layer: DenseLayer, *, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(size, layer.size, use_bias=layer.bias, rngs=rngs)
        self.activation = DENSE_ACTIVATIONS[layer.activation]

    def __call__(self, x: Array, probe: Probe | None = None) -> Array:
        """Return (B, out). x: (B, in)."""
        x = observe(probe, "linear", self.linear(x))
        return observe(probe, "activation", self.activation(x))


class SentenceEmbedding(nnx.Module):
    """The pooling, the dense layers, and the normalisation if there is one."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.pool = POOLINGS[config.sentence_pooling]
        sizes = zip(config.sentence_sizes, config.sentence_layers, strict=False)  # the last size is the result's
        self.dense = nnx.List([Dense(size, layer, rngs=rngs) for size, layer in sizes])
        self.normalized = config.sentence_normalized

    def __call__(self, x: Array, valid: Array, probe: Probe | None = None) -> Array:
        """Return the embeddings, (B, E). x: (B, S, D). valid: bool (B, S), True for real tokens."""
        x = observe(probe, "pooled", self.pool(x, valid))
        for i, layer in enumerate(self.dense):
            x = layer(x, probe=under(probe, f"dense.{i}"))
        return normalize(x) if self.normalized else x
