"""The loss of an encoder on packed tokens, for training on a CPU: padding costs little, and few programs are compiled.

It equals the loss of ``training.py`` within rounding. ``packed.py`` is the counterpart for deployment.
"""

from collections.abc import Mapping
from typing import Any

from flax import nnx
from jax import Array
from jax import numpy as jnp

from . import training
from .packed import NAMES, encode, needs_no_packing, packed_inputs, with_attention
from .transformer import Transformer


class PackedLoss(training.Loss):
    """The loss of a batch on packed tokens, or of the padded batch with dropout masks or if packing gains nothing."""

    def __init__(self, transformer: Transformer) -> None:
        super().__init__(transformer)
        self.packed, _ = nnx.split(with_attention(transformer), nnx.Param)

    def program(
        self, inputs: Mapping[str, Array], dropout_masks: Mapping[str, Array]
    ) -> tuple[training.Program, Mapping[str, Any]]:
        """Return the program for a batch, and its inputs."""
        if dropout_masks or needs_no_packing(inputs["valid"]):
            return super().program(inputs, dropout_masks)
        _, arrays = packed_inputs(self.config, inputs, (*NAMES, "teacher"))
        return training.Program(loss, self.packed), arrays


def loss(transformer: Any, packed: Mapping[str, Any], dropout_masks: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return the loss of a batch. The second result, the number of correct labels, is always 0.

    ``packed``: see ``packed_inputs``. ``dropout_masks``: always empty.
    """
    x = encode(transformer, packed)
    return training.distance(x[None], packed["teacher"][None], packed["valid"][None]), jnp.zeros((), jnp.int32)
