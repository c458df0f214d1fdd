"""Multi-head attention.

Shapes: B batch, T target length, S source length, H heads, K key size, V value size, D hidden size.
"""

from numpy import ndarray

from ...shared.config import ModelConfig
from ...shared.probe import Probe, observe
from .. import numpy_nn as nn
from .masks import masked_softmax


class MultiHeadAttention:
    """Weighted means of the values, H of them side by side ("Attention is all you need", section 3.2.2).

    query: (B, T, D). key, value: (B, S, D). allowed: bool, broadcastable to (B, H, T, S), True = may attend.
    Returns (B, T, D). Key and value size are free; the query is scaled by K^-0.5 before the product.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        keys, values = config.heads * config.key_size, config.heads * config.value_size
        self.query = nn.Linear(config.hidden_size, keys, bias=config.projection_bias)
        self.key = nn.Linear(config.hidden_size, keys, bias=config.projection_bias)
        self.value = nn.Linear(config.hidden_size, values, bias=config.projection_bias)
        self.output = nn.Linear(values, config.hidden_size, bias=config.output_bias)
        self.dropout = nn.Dropout(config.attention_dropout)
        self.output_dropout = nn.Dropout(config.attention_output_dropout)

    def __call__(
        self, query: ndarray, key: ndarray, value: ndarray, allowed: ndarray, probe: Probe | None = None
    ) -> ndarray:
        query = observe(probe, "query", self.split_heads(self.query(query), self.config.key_size))
        key = observe(probe, "key", self.split_heads(self.key(key), self.config.key_size))
        value = observe(probe, "value", self.split_heads(self.value(value), self.config.value_size))
        scores = nn.matmul(query * self.config.key_size**-0.5, key.swapaxes(-1, -2))
        scores = observe(probe, "scores", scores)
        weights = observe(probe, "weights", masked_softmax(scores, allowed, self.config))
        context = nn.matmul(self.dropout(weights), value)
        context = observe(probe, "context", self.merge_heads(context))
        output = self.output(context)
        if self.config.attention_output_activation == "relu":
            output = nn.relu(output)
        return self.output_dropout(observe(probe, "output", output))

    def split_heads(self, x: ndarray, size: int) -> ndarray:
        """(B, S, H * size) -> (B, H, S, size)."""
        return x.reshape(*x.shape[:-1], self.config.heads, size).swapaxes(1, 2)

    def merge_heads(self, x: ndarray) -> ndarray:
        """(B, H, T, V) -> (B, T, H * V)."""
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)
