"""Layer normalisation.

Shapes: B batch, S or L length, D hidden size, C channels.
"""

import paddle
from paddle import Tensor, nn
from paddle.nn import functional

from triglot.shared.model.batch_norm import check_channels
from triglot.shared.model.config import ModelConfig


class LayerNorm(nn.Layer):
    """Each vector to mean 0 and variance 1, then scaled and shifted (Ba et al. 2016). x: (..., D).

    The variance is the biased one (divided by D), and epsilon is added to it, under the root.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.scale = self.create_parameter([config.hidden_size], default_initializer=nn.initializer.Constant(1.0))
        self.bias = self.create_parameter([config.hidden_size], default_initializer=nn.initializer.Constant(0.0))

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == paddle.float64 or self.eps > 1e-3:
            # Written out: the kernel rounds epsilon to float32, and takes none above 0.001.
            wide = x if x.dtype == paddle.float64 else x.astype(paddle.float32)
            centred = wide - wide.mean(axis=-1, keepdim=True)
            variance = (centred * centred).mean(axis=-1, keepdim=True)
            normalised = centred / paddle.sqrt(variance + paddle.full([], self.eps, wide.dtype))
            return (normalised * self.scale + self.bias).astype(x.dtype)
        return functional.layer_norm(x, self.scale.shape, self.scale, self.bias, self.eps)


class ScalarLayerNorm(nn.Layer):
    """Each vector to mean 0 and deviation 1, then one scale and one bias for all dimensions; article 003. x: (..., D).

    The deviation is the unbiased one (the variance divided by D - 1), and epsilon is added to it, not to the variance.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.scale = self.create_parameter([1], default_initializer=nn.initializer.Constant(1.0))
        self.bias = self.create_parameter([1], default_initializer=nn.initializer.Constant(0.0))

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == paddle.float64 else x.astype(paddle.float32)
        centred = wide - wide.mean(axis=-1, keepdim=True)
        deviation = paddle.sqrt((centred * centred).sum(axis=-1, keepdim=True) / (x.shape[-1] - 1))
        normalised = centred / (deviation + paddle.full([], self.eps, wide.dtype))
        return (normalised * self.scale + self.bias).astype(x.dtype)


class BatchNorm1d(nn.Layer):
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
        self.scale = self.create_parameter([channels], default_initializer=nn.initializer.Constant(1.0))
        self.bias = self.create_parameter([channels], default_initializer=nn.initializer.Constant(0.0))
        self.register_buffer("mean", paddle.zeros([channels]))
        self.register_buffer("variance", paddle.ones([channels]))

    def forward(self, x: Tensor) -> Tensor:
        # Written out: the kernel keeps the biased variance, and its momentum is the share of the old statistics.
        check_channels(tuple(x.shape), len(self.scale), training=self.training)
        wide = x if x.dtype == paddle.float64 else x.astype(paddle.float32)
        values = paddle.moveaxis(wide, 0, 1).reshape([x.shape[1], -1])  # (C, B * L)
        mean, variance = self.mean, self.variance
        if self.training:
            mean, variance = values.mean(axis=1), values.var(axis=1, unbiased=False)
            with paddle.no_grad():
                unbiased = variance * (values.shape[1] / (values.shape[1] - 1))
                self.mean.set_value((1 - self.momentum) * self.mean + self.momentum * mean)
                self.variance.set_value((1 - self.momentum) * self.variance + self.momentum * unbiased)
        normalised = (values - mean[:, None]) / paddle.sqrt(variance + self.eps)[:, None]
        shifted = normalised * self.scale[:, None] + self.bias[:, None]
        return paddle.moveaxis(shifted.reshape([x.shape[1], x.shape[0], *x.shape[2:]]), 0, 1).astype(x.dtype)


NORMS = {"layer_norm": LayerNorm, "scalar_layer_norm": ScalarLayerNorm}
