"""Layer normalisation.

Shapes: B batch, S or L length, D hidden size, C channels.
"""

from flax import nnx
from jax import Array
from jax import numpy as jnp

from triglot.shared.model.batch_norm import check_channels
from triglot.shared.model.config import ModelConfig


class LayerNorm(nnx.Module):
    """Each vector to mean 0 and variance 1, then scaled and shifted (Ba et al. 2016). x: (..., D).

    The variance is the biased one (divided by D), and epsilon is added to it, under the root.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.eps = config.norm_eps
        self.scale = nnx.Param(jnp.ones(config.hidden_size))
        self.bias = nnx.Param(jnp.zeros(config.hidden_size))

    def __call__(self, x: Array) -> Array:
        # Written out: nnx.LayerNorm computes the variance as E[x^2] - E[x]^2 by default, which cancels. In float32 or
        # wider, as the kernels of the other frameworks do it.
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        centred = wide - wide.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        return (centred / jnp.sqrt(variance + self.eps) * self.scale + self.bias).astype(x.dtype)


class ScalarLayerNorm(nnx.Module):
    """Each vector to mean 0 and deviation 1, then one scale and one bias for all dimensions; article 003. x: (..., D).

    The deviation is the unbiased one (the variance divided by D - 1), and epsilon is added to it, not to the variance.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.eps = config.norm_eps
        self.scale = nnx.Param(jnp.ones(1))
        self.bias = nnx.Param(jnp.zeros(1))

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        deviation = wide.std(axis=-1, ddof=1, keepdims=True)
        normalised = (wide - wide.mean(axis=-1, keepdims=True)) / (deviation + self.eps)
        return (normalised * self.scale + self.bias).astype(x.dtype)


class BatchNorm1d(nnx.Module):
    """Each channel to mean 0 and variance 1 over batch and length, then scaled and shifted (Ioffe and Szegedy 2015).

    Article 000 shows it beside the layer norm; no model here uses it. x: (B, C, L) or (B, C).

    In training the statistics are those of the batch, and the running ones move towards them: the old ones times
    (1 - momentum), plus momentum times the new ones. In inference the running ones serve. PyTorch's convention in
    every framework: the variance that normalises is the biased one, the running one learns from the unbiased one.

    Raises:
        InputError: see ``check_channels``.
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1, *, rngs: nnx.Rngs) -> None:
        self.eps = eps
        self.momentum = momentum
        self.use_running_average = False  # what train() and eval() set
        self.scale = nnx.Param(jnp.ones(channels))
        self.bias = nnx.Param(jnp.zeros(channels))
        self.mean = nnx.BatchStat(jnp.zeros(channels))
        self.variance = nnx.BatchStat(jnp.ones(channels))

    def __call__(self, x: Array) -> Array:
        # Written out: nnx.BatchNorm keeps the biased variance, and its momentum is the share of the old statistics.
        check_channels(x.shape, len(self.scale), training=not self.use_running_average)
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        values = wide.swapaxes(0, 1).reshape(x.shape[1], -1)  # (C, B * L)
        mean, variance = self.mean[...], self.variance[...]
        if not self.use_running_average:
            mean, variance = values.mean(axis=1), values.var(axis=1)
            unbiased = variance * (values.shape[1] / (values.shape[1] - 1))
            self.mean[...] = (1 - self.momentum) * self.mean + self.momentum * mean
            self.variance[...] = (1 - self.momentum) * self.variance + self.momentum * unbiased
        normalised = (values - mean[:, None]) / jnp.sqrt(variance + self.eps)[:, None]
        shifted = normalised * self.scale[:, None] + self.bias[:, None]
        return shifted.reshape(x.shape[1], x.shape[0], *x.shape[2:]).swapaxes(0, 1).astype(x.dtype)


NORMS = {"layer_norm": LayerNorm, "scalar_layer_norm": ScalarLayerNorm}
