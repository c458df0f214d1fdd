"""Layer normalisation.

Shapes: B batch, S length, D hidden size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...shared.config import ModelConfig


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
