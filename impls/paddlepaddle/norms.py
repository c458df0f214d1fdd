"""Layer normalisation: bring each vector to mean 0 and variance 1, then scale and shift it.

Shapes: B batch, S length, D hidden size.
"""

import paddle
from paddle import Tensor, nn
from paddle.nn import functional

from triglot.shared.model.config import ModelConfig


class LayerNorm(nn.Layer):
    """Normalise each vector to mean 0 and variance 1, then scale and shift each dimension (Ba et al. 2016).

    The variance is the biased one (divided by D). Epsilon is added to the variance, under the root.
    ``size`` is the size of the vectors, D by default. ``bias``: whether there is a shift, ``norm_bias`` by default.
    """

    def __init__(self, config: ModelConfig, size: int | None = None, bias: bool | None = None) -> None:
        super().__init__()
        size = size or config.hidden_size
        bias = config.norm_bias if bias is None else bias
        self.eps = config.norm_eps
        self.scale = self.create_parameter([size], default_initializer=nn.initializer.Constant(1.0))
        self.bias = self.create_parameter([size], is_bias=True) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised vectors, (..., D). x: (..., D)."""
        if x.dtype == paddle.float64 or self.eps > 1e-3:
            # Written out, because the kernel rounds epsilon to float32 and refuses one above 0.001.
            wide = x if x.dtype == paddle.float64 else x.astype(paddle.float32)
            centred = wide - wide.mean(axis=-1, keepdim=True)
            variance = (centred * centred).mean(axis=-1, keepdim=True)
            scaled = centred / paddle.sqrt(variance + paddle.full([], self.eps, wide.dtype)) * self.scale
            return (scaled if self.bias is None else scaled + self.bias).astype(x.dtype)
        return functional.layer_norm(x, self.scale.shape, self.scale, self.bias, self.eps)


class ScalarLayerNorm(nn.Layer):
    """Normalise each vector to mean 0 and deviation 1, with one scale and one bias for all dimensions (article 003).

    The deviation is the root of the unbiased variance (divided by D - 1). Epsilon is added to the deviation.
    ``size`` and ``bias`` are not used.
    """

    def __init__(self, config: ModelConfig, size: int | None = None, bias: bool | None = None) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.scale = self.create_parameter([1], default_initializer=nn.initializer.Constant(1.0))
        self.bias = self.create_parameter([1], default_initializer=nn.initializer.Constant(0.0))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised vectors, (..., D). x: (..., D)."""
        wide = x if x.dtype == paddle.float64 else x.astype(paddle.float32)
        centred = wide - wide.mean(axis=-1, keepdim=True)
        variance = (centred * centred).sum(axis=-1, keepdim=True) / (x.shape[-1] - 1)
        # The root has an infinite gradient at 0, which would turn all gradients into NaN if a vector is constant.
        # PyTorch's ``std`` handles this itself.
        varies = variance > 0
        root = paddle.sqrt(paddle.where(varies, variance, paddle.ones_like(variance)))
        deviation = paddle.where(varies, root, paddle.zeros_like(variance))
        normalised = centred / (deviation + paddle.full([], self.eps, wide.dtype))
        return (normalised * self.scale + self.bias).astype(x.dtype)


NORMS = {"layer_norm": LayerNorm, "scalar_layer_norm": ScalarLayerNorm}
