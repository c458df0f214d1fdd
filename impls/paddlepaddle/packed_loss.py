"""The loss of an encoder on packed tokens, for training on a CPU: padding costs little.

It equals the loss of ``training.py`` within rounding. The packed transformer shares the weights of the original, so
gradients reach them. ``packed.py`` is the counterpart for deployment.

Shapes: N real tokens in the batch, H heads.
"""

from collections.abc import Mapping

import paddle
from paddle import Tensor

from .packed import PackedAttention, encode_packed, packing, with_attention
from .training import Loss, distance
from .transformer import Transformer


class PackedLoss:
    """The loss of a batch on packed tokens, or of the padded batch if there are dropout masks or no padding."""

    def __init__(self, transformer: Transformer, padded: Loss) -> None:
        self.padded = padded
        self.packed = with_attention(transformer, PackedAttention)

    def __call__(self, inputs: Mapping[str, Tensor], dropout_masks: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the loss. The second result, the number of correct labels, is always 0.

        The arguments are those of ``training.loss``.
        """
        if dropout_masks or bool(inputs["valid"].all()):
            return self.padded(inputs, dropout_masks)
        tokens, x = encode_packed(self.packed, {**inputs, **packing(self.packed.config, inputs["valid"].numpy())})
        teacher = paddle.gather(inputs["teacher"].flatten(0, 1), tokens)
        real = paddle.ones([1, len(tokens)], "bool")
        return distance(x[None], teacher[None], real), paddle.zeros([], "int64")
