"""Layer normalisation.

Shapes: B batch, S length, D hidden size.
"""

import numpy as np
from numpy import ndarray

from ...shared.config import ModelConfig
from .. import numpy_nn as nn


class LayerNorm:
    """Each vector to mean 0 and variance 1, then scaled and shifted (Ba et al. 2016). x: (..., D).

    The variance is the biased one (divided by D), and epsilon is added to it, under the root.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.eps = config.norm_eps
        self.scale = np.ones(config.hidden_size)
        self.bias = np.zeros(config.hidden_size)

    def __call__(self, x: ndarray) -> ndarray:
        centred = x - nn.mean(x)
        variance = nn.mean(centred * centred)
        return centred / np.sqrt(variance + self.eps) * self.scale + self.bias
