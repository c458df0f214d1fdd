"""Multi-head attention: every target token takes weighted means of source values, one in each head.

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
    """Attention with H heads ("Attention is all you need", section 3.2.2). K and V may differ from D / H."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        key_features, value_features = config.heads * config.key_size, config.heads * config.value_size
        self.query = nnx.Linear(config.hidden_size, key_features, use_bias=config.projection_bias, rngs=rngs)
        self.key = nnx.Linear(config.hidden_size, key_features, use_bias=config.projection_bias, rngs=rngs)
        self.value = nnx.Linear(config.hidden_size, value_features, use_bias=config.projection_bias, rngs=rngs)
        self.output = nnx.Linear(value_features, config.hidden_size, use_bias=config.output_bias, rngs=rngs)
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
        """Return the output, (B, T, D), and the attention weights, (B, H, T, S).

        query: (B, T, D). key, value: (B, S, D). allowed: bool, broadcastable to (B, H, T, S), True where a query may
        attend. bias: float, broadcastable to (B, H, T, S), added to the scores.
        """
        keys, values = self.project(key, value, probe)
        return self.attend(query, keys, values, allowed, bias, probe)

    def project(self, key: Array, value: Array, probe: Probe | None = None) -> tuple[Array, Array]:
        """Project key and value, (B, S, D), to keys (B, H, S, K) and values (B, H, S, V), which a decoder can cache."""
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
        """Attend to projected keys (B, H, S, K) and values (B, H, S, V).

        The query is scaled by K^-0.5 before the product. The other arguments and the results are those of the layer.
        """
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
        """Split the last axis into heads: (B, S, H * size) to (B, H, S, size)."""
        return x.reshape(*x.shape[:-1], self.config.heads, size).swapaxes(1, 2)

    def merge_heads(self, x: Array) -> Array:
        """Merge the heads into the last axis: (B, H, T, V) to (B, T, H * V)."""
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)
