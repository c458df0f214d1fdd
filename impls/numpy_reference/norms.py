"""Layer normalisation: bring each vector to mean 0 and variance 1, then scale and shift it.

Shapes: B batch, S length, D hidden size.
"""

import numpy as np
from numpy import ndarray

from triglot.impls import numpy_nn as nn
from triglot.shared.model.config import ModelConfig


class LayerNorm:
    """Normalise each vector to mean 0 and variance 1, then scale and shift each dimension (Ba et al. 2016).

    The variance is the biased one (divided by D). Epsilon is added to the variance, under the root.
    ``size`` is the size of the vectors, D by default. ``bias``: whether there is a shift, ``norm_bias`` by default.
    """

    def __init__(self, config: ModelConfig, size: int | None = None, bias: bool | None = None) -> None:
        size = size or config.hidden_size
        bias = config.norm_bias if bias is None else bias
        self.eps = config.norm_eps
        self.scale = np.ones(size)
        self.bias = np.zeros(size) if bias else None

    def __call__(self, x: ndarray) -> ndarray:
        """Return the normalised vectors, (..., D). x: (..., D)."""
        x = (x - nn.mean(x)) / np.sqrt(nn.variance(x) + self.eps) * self.scale
        return x if self.bias is None else x + self.bias


class ScalarLayerNorm:
    """Normalise each vector to mean 0 and deviation 1, with one scale and one bias for all dimensions (article 003).

    The deviation is the root of the unbiased variance (divided by D - 1). Epsilon is added to the deviation.
    ``size`` and ``bias`` are not used.
    """

    def __init__(self, config: ModelConfig, size: int | None = None, bias: bool | None = None) -> None:
        self.eps = config.norm_eps
        self.scale = np.ones(1)
        self.bias = np.zeros(1)

    def __call__(self, x: ndarray) -> ndarray:
        """Return the normalised vectors, (..., D). x: (..., D)."""
        deviation = np.sqrt(nn.variance(x) * (x.shape[-1] / (x.shape[-1] - 1)))
        return (x - nn.mean(x)) / (deviation + self.eps) * self.scale + self.bias


NORMS = {"layer_norm": LayerNorm, "scalar_layer_norm": ScalarLayerNorm}
