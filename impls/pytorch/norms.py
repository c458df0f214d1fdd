"""Layer normalisation.

Shapes: B batch, S length, D hidden size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

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


NORMS = {"layer_norm": LayerNorm, "scalar_layer_norm": ScalarLayerNorm}
