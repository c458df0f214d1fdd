"""Layer normalisation.

Shapes: B batch, S or L length, D hidden size, C channels.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from triglot.shared.model.batch_norm import check_channels
from triglot.shared.model.config import ModelConfig


class LayerNorm(nn.Module):
    """Each vector to mean 0 and variance 1, then scaled and shifted (Ba et al. 2016). x: (..., D).

    The variance is the biased one (divided by D), and epsilon is added to it, under the root.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.scale = nn.Parameter(torch.ones(config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(config.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.scale.shape, self.scale, self.bias, self.eps)


class ScalarLayerNorm(nn.Module):
    """Each vector to mean 0 and deviation 1, then one scale and one bias for all dimensions; article 003. x: (..., D).

    The deviation is the unbiased one (the variance divided by D - 1), and epsilon is added to it, not to the variance.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        deviation = wide.std(dim=-1, correction=1, keepdim=True)
        normalised = (wide - wide.mean(dim=-1, keepdim=True)) / (deviation + self.eps)
        return (normalised * self.scale + self.bias).to(x.dtype)


class BatchNorm1d(nn.Module):
    """Each channel to mean 0 and variance 1 over batch and length, then scaled and shifted (Ioffe and Szegedy 2015).

    Article 000 shows it beside the layer norm; no model here uses it. x: (B, C, L) or (B, C).

    In training the statistics are those of the batch, and the running ones move towards them: the old ones times
    (1 - momentum), plus momentum times the new ones. In inference the running ones serve. PyTorch's convention in
    every framework: the variance that normalises is the biased one, the running one learns from the unbiased one.

    Raises:
        InputError: see ``check_channels``.
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.scale = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.mean = nn.Buffer(torch.zeros(channels))
        self.variance = nn.Buffer(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        check_channels(tuple(x.shape), len(self.scale), training=self.training)
        statistics = (self.mean, self.variance)
        return functional.batch_norm(x, *statistics, self.scale, self.bias, self.training, self.momentum, self.eps)


NORMS = {"layer_norm": LayerNorm, "scalar_layer_norm": ScalarLayerNorm}
