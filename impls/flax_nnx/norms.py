"""Layer normalisation.

Shapes: B batch, S length, D hidden size.
"""

from flax import nnx
from jax import Array
from jax import numpy as jnp

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


NORMS = {"layer_norm": LayerNorm, "scalar_layer_norm": ScalarLayerNorm}
