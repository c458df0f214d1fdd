"""The position-wise feed-forward network: two linear layers that treat every token alike.

Shapes: B batch, S length, D hidden size, F feed-forward size.
"""

from functools import partial

import jax
from flax import nnx
from jax import Array

from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe, dropped, observe

# ``approximate`` is always written out, because the frameworks have different defaults.
ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
}


class FeedForward(nnx.Module):
    """Two linear layers, D to F to D, with an activation between them ("Attention is all you need", section 3.3)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(
            config.hidden_size, config.feed_forward_size, use_bias=config.feed_forward_bias, rngs=rngs
        )
        self.output = nnx.Linear(
            config.feed_forward_size, config.hidden_size, use_bias=config.feed_forward_bias, rngs=rngs
        )
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = nnx.Dropout(config.feed_forward_dropout, rngs=rngs)
        self.output_dropout = nnx.Dropout(config.feed_forward_output_dropout, rngs=rngs)

    def __call__(self, x: Array, probe: Probe | None = None) -> Array:
        """Return the output, (B, S, D). x: (B, S, D)."""
        x = observe(probe, "inner", self.inner(x))
        x = observe(probe, "activation", self.activation(x))
        x = dropped(probe, "dropout", x, self.dropout)
        x = observe(probe, "output", self.output(x))
        return dropped(probe, "output_dropout", x, self.output_dropout)
