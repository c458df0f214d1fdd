"""The loss of an encoder on packed tokens, for training on a CPU: padding costs little.

It equals the loss of ``training.py`` within rounding. The packed transformer shares the weights of the original, so
gradients reach them. ``packed.py`` is the counterpart for deployment.

Shapes: N real tokens in the batch, D hidden size; H heads, K key size, V value size.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .attention import MultiHeadAttention
from .packed import PackedAttention, encode_packed, swapped, with_layers
from .training import Loss, distance
from .transformer import Transformer


class PackedLoss:
    """The loss of a batch on packed tokens, or of the padded batch if there are dropout masks."""

    def __init__(self, transformer: Transformer, padded: Loss) -> None:
        self.padded = padded
        self.packed = with_layers(transformer, map(trained_layer, transformer.encoder.layers))

    def __call__(self, inputs: Mapping[str, Tensor], dropout_masks: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the loss. The second result, the number of correct labels, is always 0.

        The arguments are those of ``training.loss``.
        """
        if dropout_masks:
            return self.padded(inputs, dropout_masks)
        tokens, x = encode_packed(self.packed, inputs)
        teacher = inputs["teacher"].flatten(0, 1)[tokens]
        real = torch.ones(1, len(tokens), dtype=torch.bool)
        return distance(x[None], teacher[None], real), torch.zeros((), dtype=torch.int64)


def trained_layer(layer: Any) -> nn.Module:
    """Return a layer of the encoder that reads packed tokens, with the weights of the original."""
    attention = layer.attention
    return swapped(layer, attention=PackedAttention(attention.config, Projections(attention), attention.output))


class Projections(nn.Module):
    """The projections of an attention, side by side."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.query, self.key, self.value = attention.query, attention.key, attention.value

    def forward(self, x: Tensor) -> Tensor:
        """Return query, key and value side by side, (N, H * (2 * K + V)). x: (N, D)."""
        return torch.cat([self.query(x), self.key(x), self.value(x)], dim=-1)
