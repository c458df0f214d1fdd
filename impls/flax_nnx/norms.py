"""Layer normalisation: bring each vector to mean 0 and variance 1, then scale and shift it.

Shapes: B batch, S length, D hidden size.
"""

from flax import nnx
from jax import Array
from jax import numpy as jnp

from triglot.shared.model.config import ModelConfig


class LayerNorm(nnx.Module):
    """Normalise each vector to mean 0 and variance 1, then scale and shift each dimension (Ba et al. 2016).

    The variance is the biased one (divided by D). Epsilon is added to the variance, under the root.
    ``size`` is the size of the vectors, D by default. ``bias``: whether there is a shift, ``norm_bias`` by default.
    """

    def __init__(
        self, config: ModelConfig, size: int | None = None, bias: bool | None = None, *, rngs: nnx.Rngs
    ) -> None:
        size = size or config.hidden_size
        bias = config.norm_bias if bias is None else bias
        self.eps = config.norm_eps
        self.scale = nnx.Param(jnp.ones(size))
        self.bias = nnx.Param(jnp.zeros(size)) if bias else None

    def __call__(self, x: Array) -> Array:
        """Return the normalised vectors, (..., D). x: (..., D)."""
        # Written out, because nnx.LayerNorm by default computes the variance as E[x^2] - E[x]^2, which cancels. The
        # kernels of the other frameworks also compute in float32 or wider.
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        centred = wide - wide.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        scaled = centred / jnp.sqrt(variance + self.eps) * self.scale
        return (scaled if self.bias is None else scaled + self.bias).astype(x.dtype)


class ScalarLayerNorm(nnx.Module):
    """Normalise each vector to mean 0 and deviation 1, with one scale and one bias for all dimensions (article 003).

    The deviation is the root of the unbiased variance (divided by D - 1). Epsilon is added to the deviation.
    ``size`` and ``bias`` are not used.
    """

    def __init__(
        self, config: ModelConfig, size: int | None = None, bias: bool | None = None, *, rngs: nnx.Rngs
    ) -> None:
        self.eps = config.norm_eps
        self.scale = nnx.Param(jnp.ones(1))
        self.bias = nnx.Param(jnp.zeros(1))

    def __call__(self, x: Array) -> Array:
        """Return the normalised vectors, (..., D). x: (..., D)."""
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        variance = wide.var(axis=-1, ddof=1, keepdims=True)
        # The root has an infinite gradient at 0, which would turn all gradients into NaN if a vector is constant.
        # PyTorch's ``std`` handles this itself.
        varies = variance > 0
        deviation = jnp.where(varies, jnp.sqrt(jnp.where(varies, variance, 1.0)), 0.0)
        normalised = (wide - wide.mean(axis=-1, keepdims=True)) / (deviation + self.eps)
        return (normalised * self.scale + self.bias).astype(x.dtype)


NORMS = {"layer_norm": LayerNorm, "scalar_layer_norm": ScalarLayerNorm}
