"""Layer normalisation: bring each vector to mean 0 and variance 1, then scale and shift it.

Shapes: B batch, S length, D hidden size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from triglot.shared.model.config import ModelConfig


class LayerNorm(nn.Module):
    """Normalise each vector to mean 0 and variance 1, then scale and shift each dimension (Ba et al. 2016).

    The variance is the biased one (divided by D). Epsilon is added to the variance, under the root.
    ``size`` is the size of the vectors, D by default. ``bias``: whether there is a shift, ``norm_bias`` by default.
    """

    def __init__(self, config: ModelConfig, size: int | None = None, bias: bool | None = None) -> None:
        super().__init__()
        size = size or config.hidden_size
        bias = config.norm_bias if bias is None else bias
        self.eps = config.norm_eps
        self.scale = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised vectors, (..., D). x: (..., D)."""
        return functional.layer_norm(x, self.scale.shape, self.scale, self.bias, self.eps)


class ScalarLayerNorm(nn.Module):
    """Normalise each vector to mean 0 and deviation 1, with one scale and one bias for all dimensions (article 003).

    The deviation is the root of the unbiased variance (divided by D - 1). Epsilon is added to the deviation.
    ``size`` and ``bias`` are not used.
    """

    def __init__(self, config: ModelConfig, size: int | None = None, bias: bool | None = None) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised vectors, (..., D). x: (..., D)."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        deviation = wide.std(dim=-1, correction=1, keepdim=True)
        normalised = (wide - wide.mean(dim=-1, keepdim=True)) / (deviation + self.eps)
        return (normalised * self.scale + self.bias).to(x.dtype)


NORMS = {"layer_norm": LayerNorm, "scalar_layer_norm": ScalarLayerNorm}
