"""Layer normalisation.

Shapes: B batch, S or L length, D hidden size, C channels.
"""

import numpy as np
from numpy import ndarray

from triglot.impls import numpy_nn as nn
from triglot.shared.model.batch_norm import check_channels
from triglot.shared.model.config import ModelConfig


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


class ScalarLayerNorm:
    """Each vector to mean 0 and deviation 1, then one scale and one bias for all dimensions; article 003. x: (..., D).

    The deviation is the unbiased one (the variance divided by D - 1), and epsilon is added to it, not to the variance.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.eps = config.norm_eps
        self.scale = np.ones(1)
        self.bias = np.zeros(1)

    def __call__(self, x: ndarray) -> ndarray:
        centred = x - nn.mean(x)
        deviation = np.sqrt(nn.mean(centred * centred) * (x.shape[-1] / (x.shape[-1] - 1)))
        return centred / (deviation + self.eps) * self.scale + self.bias


class BatchNorm1d:
    """Each channel to mean 0 and variance 1 over batch and length, then scaled and shifted (Ioffe and Szegedy 2015).

    Article 000 shows it beside the layer norm; no model here uses it. x: (B, C, L) or (B, C).

    In training the statistics are those of the batch, and the running ones move towards them: the old ones times
    (1 - momentum), plus momentum times the new ones. In inference the running ones serve. PyTorch's convention in
    every framework: the variance that normalises is the biased one, the running one learns from the unbiased one.

    Raises:
        InputError: see ``check_channels``.
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        self.eps = eps
        self.momentum = momentum
        self.training = True
        self.scale = np.ones(channels)
        self.bias = np.zeros(channels)
        self.mean = np.zeros(channels)
        self.variance = np.ones(channels)

    def __call__(self, x: ndarray) -> ndarray:
        check_channels(x.shape, len(self.scale), training=self.training)
        values = x.swapaxes(0, 1).reshape(x.shape[1], -1)  # (C, B * L)
        mean, variance = self.mean[:, None], self.variance[:, None]
        if self.training:
            mean = nn.mean(values)
            variance = nn.mean((values - mean) * (values - mean))
            unbiased = variance * (values.shape[1] / (values.shape[1] - 1))
            self.mean = (1 - self.momentum) * self.mean + self.momentum * mean[:, 0]
            self.variance = (1 - self.momentum) * self.variance + self.momentum * unbiased[:, 0]
        normalised = (values - mean) / np.sqrt(variance + self.eps)
        shifted = normalised * self.scale[:, None] + self.bias[:, None]
        return shifted.reshape(x.shape[1], x.shape[0], *x.shape[2:]).swapaxes(0, 1)


NORMS = {"layer_norm": LayerNorm, "scalar_layer_norm": ScalarLayerNorm}
