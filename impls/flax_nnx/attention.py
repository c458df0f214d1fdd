"""Multi-head attention.

Shapes: B batch, T target length, S source length, H heads, K key size, V value size, D hidden size.
"""

import jax
from flax import nnx
from jax import Array
from jax import numpy as jnp

from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe, dropped, observe

from .masks import masked_softmax


class MultiHeadAttention(nnx.Module):
    """Weighted means of the values, H of them side by side ("Attention is all you need", section 3.2.2).

    query: (B, T, D). key, value: (B, S, D). allowed: bool, broadcastable to (B, H, T, S), True = may attend. bias:
    float, broadcastable to (B, H, T, S), added to the scores. Returns (B, T, D) and the weights, (B, H, T, S). Key and
    value size are free; the query is scaled by K^-0.5 before the product.
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

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        allowed: Array,
        bias: Array | None = None,
        probe: Probe | None = None,
    ) -> tuple[Array, Array]:
        keys, values = self.project(key, value, probe)
        return self.attend(query, keys, values, allowed, bias, probe)

    def project(self, key: Array, value: Array, probe: Probe | None = None) -> tuple[Array, Array]:
        """What is attended to, (B, H, S, K) and (B, H, S, V): a decoder keeps it from one target token to the next."""
        keys = observe(probe, "key", self.split_heads(self.key(key), self.config.key_size))
        values = observe(probe, "value", self.split_heads(self.value(value), self.config.value_size))
        return keys, values

    def attend(
        self,
        query: Array,
        keys: Array,
        values: Array,
        allowed: Array,
        bias: Array | None = None,
        probe: Probe | None = None,
    ) -> tuple[Array, Array]:
        """The attention of ``query`` to what ``project`` returned."""
        query = observe(probe, "query", self.split_heads(self.query(query), self.config.key_size))
        scores = jnp.matmul(query * self.config.key_size**-0.5, keys.swapaxes(-1, -2))
        scores = observe(probe, "scores", scores)
        weights = observe(probe, "weights", masked_softmax(scores, allowed, bias, self.config))
        weights = dropped(probe, "dropout", weights, self.dropout)
        context = jnp.matmul(weights, values)
        context = observe(probe, "context", self.merge_heads(context))
        output = self.output(context)
        if self.config.attention_output_activation == "relu":
            output = jax.nn.relu(output)
        output = observe(probe, "output", output)
        return dropped(probe, "output_dropout", output, self.output_dropout), weights

    def split_heads(self, x: Array, size: int) -> Array:
        """(B, S, H * size) -> (B, H, S, size)."""
        return x.reshape(*x.shape[:-1], self.config.heads, size).swapaxes(1, 2)

    def merge_heads(self, x: Array) -> Array:
        """(B, H, T, V) -> (B, T, H * V)."""
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)
