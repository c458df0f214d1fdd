"""Multi-head attention.

Shapes: B batch, T target length, S source length, H heads, K key size, V value size, D hidden size.
"""

import jax
from flax import nnx
from jax import Array
from jax import numpy as jnp

from ...shared.config import ModelConfig
from ...shared.probe import Probe, observe
from .masks import masked_softmax


class MultiHeadAttention(nnx.Module):
    """Weighted means of the values, H of them side by side ("Attention is all you need", section 3.2.2).

    query: (B, T, D). key, value: (B, S, D). allowed: bool, broadcastable to (B, H, T, S), True = may attend.
    Returns (B, T, D). Key and value size are free; the query is scaled by K^-0.5 before the product.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        keys, values = config.heads * config.key_size, config.heads * config.value_size
        self.query = nnx.Linear(config.hidden_size, keys, use_bias=config.projection_bias, rngs=rngs)
        self.key = nnx.Linear(config.hidden_size, keys, use_bias=config.projection_bias, rngs=rngs)
        self.value = nnx.Linear(config.hidden_size, values, use_bias=config.projection_bias, rngs=rngs)
        self.output = nnx.Linear(values, config.hidden_size, use_bias=config.output_bias, rngs=rngs)
        self.dropout = nnx.Dropout(config.attention_dropout, rngs=rngs)
        self.output_dropout = nnx.Dropout(config.attention_output_dropout, rngs=rngs)

    def __call__(self, query: Array, key: Array, value: Array, allowed: Array, probe: Probe | None = None) -> Array:
        query = observe(probe, "query", self.split_heads(self.query(query), self.config.key_size))
        key = observe(probe, "key", self.split_heads(self.key(key), self.config.key_size))
        value = observe(probe, "value", self.split_heads(self.value(value), self.config.value_size))
        scores = jnp.matmul(query * self.config.key_size**-0.5, key.swapaxes(-1, -2))
        scores = observe(probe, "scores", scores)
        weights = observe(probe, "weights", masked_softmax(scores, allowed, self.config))
        context = jnp.matmul(self.dropout(weights), value)
        context = observe(probe, "context", self.merge_heads(context))
        output = self.output(context)
        if self.config.attention_output_activation == "relu":
            output = jax.nn.relu(output)
        return self.output_dropout(observe(probe, "output", output))

    def split_heads(self, x: Array, size: int) -> Array:
        """(B, S, H * size) -> (B, H, S, size)."""
        return x.reshape(*x.shape[:-1], self.config.heads, size).swapaxes(1, 2)

    def merge_heads(self, x: Array) -> Array:
        """(B, H, T, V) -> (B, T, H * V)."""
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)
