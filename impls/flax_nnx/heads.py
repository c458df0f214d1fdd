"""What stands on top of the encoder.

Shapes: B batch, S length, D hidden size.
"""

from flax import nnx
from jax import Array
from jax import numpy as jnp

from ...shared.config import ModelConfig
from ...shared.probe import Probe, observe


class Heads(nnx.Module):
    """The heads that the configuration names, by name. x: (B, S, D), the output of the encoder.

    "pooler": the first token through a linear layer and tanh, (B, D) (Devlin et al. 2018).
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        if "pooler" in config.heads_on_top:
            self.pooler = nnx.Linear(config.hidden_size, config.hidden_size, rngs=rngs)

    def __call__(self, x: Array, probe: Probe | None = None) -> dict[str, Array]:
        outputs: dict[str, Array] = {}
        if hasattr(self, "pooler"):
            outputs["pooler"] = observe(probe, "pooler", jnp.tanh(self.pooler(x[:, 0])))
        return outputs
