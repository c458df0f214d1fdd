"""Multi-head attention: every target token takes weighted means of source values, one in each head.

Shapes: B batch, T target length, S source length, H heads, K key size, V value size, D hidden size.
"""

from numpy import ndarray

from triglot.impls import numpy_nn as nn
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe, dropped, observe

from .masks import masked_softmax


class MultiHeadAttention:
    """Attention with H heads ("Attention is all you need", section 3.2.2). K and V may differ from D / H."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        key_features, value_features = config.heads * config.key_size, config.heads * config.value_size
        self.query = nn.Linear(config.hidden_size, key_features, bias=config.projection_bias)
        self.key = nn.Linear(config.hidden_size, key_features, bias=config.projection_bias)
        self.value = nn.Linear(config.hidden_size, value_features, bias=config.projection_bias)
        self.output = nn.Linear(value_features, config.hidden_size, bias=config.output_bias)
        self.dropout = nn.Dropout(config.attention_dropout)
        self.output_dropout = nn.Dropout(config.attention_output_dropout)

    def __call__(
        self,
        query: ndarray,
        key: ndarray,
        value: ndarray,
        allowed: ndarray,
        bias: ndarray | None = None,
        probe: Probe | None = None,
    ) -> tuple[ndarray, ndarray]:
        """Return the output, (B, T, D), and the attention weights, (B, H, T, S).

        query: (B, T, D). key, value: (B, S, D). allowed: bool, broadcastable to (B, H, T, S), True where a query may
        attend. bias: float, broadcastable to (B, H, T, S), added to the scores.
        """
        keys, values = self.project(key, value, probe)
        return self.attend(query, keys, values, allowed, bias, probe)

    def project(self, key: ndarray, value: ndarray, probe: Probe | None = None) -> tuple[ndarray, ndarray]:
        """Project key and value, (B, S, D), to keys (B, H, S, K) and values (B, H, S, V), which a decoder can cache."""
        keys = observe(probe, "key", self.split_heads(self.key(key), self.config.key_size))
        values = observe(probe, "value", self.split_heads(self.value(value), self.config.value_size))
        return keys, values

    def attend(
        self,
        query: ndarray,
        keys: ndarray,
        values: ndarray,
        allowed: ndarray,
        bias: ndarray | None = None,
        probe: Probe | None = None,
    ) -> tuple[ndarray, ndarray]:
        """Attend to projected keys (B, H, S, K) and values (B, H, S, V).

        The query is scaled by K^-0.5 before the product. The other arguments and the results are those of the layer.
        """
        query = observe(probe, "query", self.split_heads(self.query(query), self.config.key_size))
        scores = nn.matmul(query * self.config.key_size**-0.5, keys.swapaxes(-1, -2))
        scores = observe(probe, "scores", scores)
        weights = observe(probe, "weights", masked_softmax(scores, allowed, bias, self.config))
        weights = dropped(probe, "dropout", weights, self.dropout)
        context = nn.matmul(weights, values)
        context = observe(probe, "context", self.merge_heads(context))
        output = self.output(context)
        if self.config.attention_output_activation == "relu":
            output = nn.relu(output)
        output = observe(probe, "output", output)
        return dropped(probe, "output_dropout", output, self.output_dropout), weights

    def split_heads(self, x: ndarray, size: int) -> ndarray:
        """Split the last axis into heads: (B, S, H * size) to (B, H, S, size)."""
        return x.reshape(*x.shape[:-1], self.config.heads, size).swapaxes(1, 2)

    def merge_heads(self, x: ndarray) -> ndarray:
        """Merge the heads into the last axis: (B, H, T, V) to (B, T, H * V)."""
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)
