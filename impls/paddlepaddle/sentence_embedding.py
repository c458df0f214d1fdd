"""Sentence embeddings: one vector for each row, pooled from the output of the encoder (Reimers and Gurevych 2019).

Shapes: B batch, S length, D hidden size; in, out what a dense layer reads and returns; E the size of the embedding.
"""

import math

import paddle
from paddle import Tensor, nn

from triglot.shared.model.config import DenseLayer, ModelConfig
from triglot.shared.model.probe import Probe, observe, under

from .feed_forward import ACTIVATIONS

LEAST_LENGTH = 1e-12  # divides shorter vectors in place of their length


def pool_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of the real tokens, (B, D), computed in float32 or wider; zero if a row has none.

    x: (B, S, D). valid: bool (B, S), True for real tokens.
    """
    wide = x.astype(paddle.float64 if x.dtype == paddle.float64 else paddle.float32)
    total = wide.masked_fill(~valid[:, :, None], paddle.zeros([], wide.dtype)).sum(axis=1)
    return (total / valid.astype(total.dtype).sum(axis=1, keepdim=True).clip(min=1)).astype(x.dtype)


def pool_cls(x: Tensor, valid: Tensor) -> Tensor:
    """Return the first real token, (B, D); zero if a row has none. Arguments as in ``pool_mean``."""
    first = valid & (valid.astype(paddle.int32).cumsum(axis=1) == 1)
    return x.masked_fill(~first[:, :, None], paddle.zeros([], x.dtype)).sum(axis=1)


def pool_max(x: Tensor, valid: Tensor) -> Tensor:
    """Return the maximum of each dimension over the real tokens, (B, D); zero if a row has none.

    Arguments as in ``pool_mean``.
    """
    largest = x.masked_fill(~valid[:, :, None], paddle.full([], -math.inf, x.dtype)).max(axis=1)
    return largest.masked_fill(~valid.any(axis=1, keepdim=True), paddle.zeros([], x.dtype))


def normalize(x: Tensor) -> Tensor:
    """Scale each vector to length 1, computed in float32 or wider. A vector of zeros stays zero. x: (B, E)."""
    wide = x.astype(paddle.float64 if x.dtype == paddle.float64 else paddle.float32)
    # Written out, because compiled code would round the epsilon of paddle.nn.functional.normalize to float32.
    length = paddle.sqrt((wide * wide).sum(axis=-1, keepdim=True))
    return (wide / paddle.maximum(length, paddle.full([], LEAST_LENGTH, wide.dtype))).astype(x.dtype)


def identity(x: Tensor) -> Tensor:
    """Return x, for a dense layer without an activation."""
    return x


POOLINGS = {"mean": pool_mean, "cls": pool_cls, "max": pool_max}
DENSE_ACTIVATIONS = {**ACTIVATIONS, "tanh": paddle.tanh, "none": identity}


class Dense(nn.Layer):
    """A linear layer and an activation. ``size`` is the size of its input."""

    def __init__(self, size: int, layer: DenseLayer) -> None:
        super().__init__()
        self.linear = nn.Linear(size, layer.size, bias_attr=None if layer.bias else False)
        self.activation = DENSE_ACTIVATIONS[layer.activation]

    def forward(self, x: Tensor, probe: Probe | None = None) -> Tensor:
        """Return (B, out). x: (B, in)."""
        x = observe(probe, "linear", self.linear(x))
        return observe(probe, "activation", self.activation(x))


class SentenceEmbedding(nn.Layer):
    """The pooling, the dense layers, and the normalisation if there is one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pool = POOLINGS[config.sentence_pooling]
        sizes = zip(config.sentence_sizes, config.sentence_layers, strict=False)  # the last size is the result's
        self.dense = nn.LayerList([Dense(size, layer) for size, layer in sizes])
        self.normalized = config.sentence_normalized

    def forward(self, x: Tensor, valid: Tensor, probe: Probe | None = None) -> Tensor:
        """Return the embeddings, (B, E). x: (B, S, D). valid: bool (B, S), True for real tokens."""
        x = observe(probe, "pooled", self.pool(x, valid))
        for i, layer in enumerate(self.dense):
            x = layer(x, probe=under(probe, f"dense.{i}"))
        return normalize(x) if self.normalized else x
