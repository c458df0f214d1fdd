"""Sentence embeddings: one vector for each row, pooled from the output of the encoder (Reimers and Gurevych 2019).

Shapes: B batch, S length, D hidden size; in, out what a dense layer reads and returns; E the size of the embedding.
"""

import numpy as np
from numpy import ndarray

from triglot.impls import numpy_nn as nn
from triglot.shared.model.config import DenseLayer, ModelConfig
from triglot.shared.model.probe import Probe, observe, under

from .feed_forward import ACTIVATIONS

LEAST_LENGTH = 1e-12  # divides shorter vectors in place of their length


def pool_mean(x: ndarray, valid: ndarray) -> ndarray:
    """Return the mean of the real tokens, (B, D), computed in float32 or wider; zero if a row has none.

    x: (B, S, D). valid: bool (B, S), True for real tokens.
    """
    wide = np.where(valid[:, :, None], x, 0.0)
    total = nn.total(wide.swapaxes(1, 2))[:, :, 0]
    return total / np.maximum(valid.sum(axis=1, keepdims=True), 1).astype(x.dtype)


def pool_cls(x: ndarray, valid: ndarray) -> ndarray:
    """Return the first real token, (B, D); zero if a row has none. Arguments as in ``pool_mean``."""
    first = valid & (valid.cumsum(axis=1) == 1)
    return np.where(first[:, :, None], x, 0.0).sum(axis=1)


def pool_max(x: ndarray, valid: ndarray) -> ndarray:
    """Return the maximum of each dimension over the real tokens, (B, D); zero if a row has none.

    Arguments as in ``pool_mean``.
    """
    largest = np.where(valid[:, :, None], x, -np.inf).max(axis=1)
    return np.where(valid.any(axis=1, keepdims=True), largest, 0.0)


def normalize(x: ndarray) -> ndarray:
    """Scale each vector to length 1, computed in float32 or wider. A vector of zeros stays zero. x: (B, E)."""
    wide = x
    length = np.sqrt(nn.total(wide * wide))
    return wide / np.maximum(length, LEAST_LENGTH)


def identity(x: ndarray) -> ndarray:
    """Return x, for a dense layer without an activation."""
    return x


POOLINGS = {"mean": pool_mean, "cls": pool_cls, "max": pool_max}
DENSE_ACTIVATIONS = {**ACTIVATIONS, "tanh": nn.tanh, "none": identity}


class Dense:
    """A linear layer and an activation. ``size`` is the size of its input."""

    def __init__(self, size: int, layer: DenseLayer) -> None:
        self.linear = nn.Linear(size, layer.size, bias=layer.bias)
        self.activation = DENSE_ACTIVATIONS[layer.activation]

    def __call__(self, x: ndarray, probe: Probe | None = None) -> ndarray:
        """Return (B, out). x: (B, in)."""
        x = observe(probe, "linear", self.linear(x))
        return observe(probe, "activation", self.activation(x))


class SentenceEmbedding:
    """The pooling, the dense layers, and the normalisation if there is one."""

    def __init__(self, config: ModelConfig) -> None:
        self.pool = POOLINGS[config.sentence_pooling]
        sizes = zip(config.sentence_sizes, config.sentence_layers, strict=False)  # the last size is the result's
        self.dense = [Dense(size, layer) for size, layer in sizes]
        self.normalized = config.sentence_normalized

    def __call__(self, x: ndarray, valid: ndarray, probe: Probe | None = None) -> ndarray:
        """Return the embeddings, (B, E). x: (B, S, D). valid: bool (B, S), True for real tokens."""
        x = observe(probe, "pooled", self.pool(x, valid))
        for i, layer in enumerate(self.dense):
            x = layer(x, probe=under(probe, f"dense.{i}"))
        return normalize(x) if self.normalized else x
