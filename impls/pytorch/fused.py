"""The encoder for deployment on a GPU in 16-bit formats: PyTorch's fused attention, which need not store the scores.

It is the module of ``transformer.py`` with another attention.

Shapes: B batch, S length, H heads, D hidden size.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from triglot.shared.arrays import HALVES
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe

from .attention import MultiHeadAttention
from .packed import projection_parameters, swapped, with_layers
from .transformer import Transformer


def can_fuse(config: ModelConfig, device: str, dtype: str) -> bool:
    """Return whether attention is fused: on a GPU, in 16 bits, in an encoder whose padding contributes nothing.

    On an NVIDIA H200, fusing gained nothing in float32. PyTorch has no fused kernel for float64.
    """
    return config.kind == "encoder" and config.masking == "exclude" and device == "cuda" and dtype in HALVES


def with_fused_attention(transformer: Transformer) -> Transformer:
    """Return the same transformer with fused attention. Only the weights of query, key and value are copied."""
    layers: Any = transformer.encoder.layers
    return with_layers(transformer, (swapped(layer, attention=FusedAttention(layer.attention)) for layer in layers))


class FusedAttention(nn.Module):
    """Self-attention in a fused kernel, after one product that computes query, key and value."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.config = attention.config
        weight, bias = projection_parameters(attention)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.output = attention.output

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, probe: Probe | None = None
    ) -> tuple[Tensor, None]:
        """Return the output, (B, S, D), and no weights. query, key and value are the same tensor, (B, S, D).

        allowed: bool (B, 1, 1, S), True where a query may attend.
        """
        config = self.config
        sizes = [config.heads * size for size in (config.key_size, config.key_size, config.value_size)]
        features = functional.linear(query, self.weight, self.bias).split(sizes, dim=-1)
        projected = (each.unflatten(-1, (config.heads, -1)).transpose(1, 2) for each in features)
        context = functional.scaled_dot_product_attention(*projected, attn_mask=allowed)
        output = self.output(context.transpose(1, 2).flatten(-2))
        return functional.relu(output) if config.attention_output_activation == "relu" else output, None
