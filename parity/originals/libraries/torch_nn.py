"""Originals in PyTorch: a state dict of ``torch.nn.TransformerEncoder``."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from triglot.parity.originals import Original
from triglot.parity.output_names import ENCODE
from triglot.shared.arrays import Array
from triglot.shared.inputs import Batch, EncoderBatch
from triglot.shared.model.config import ModelConfig
from triglot.shared.porting import containers


def run(original: Original, batches: Sequence[Batch], dtype: str) -> list[dict[str, Array]]:
    """Return what the model computes of each batch; see ``originals``."""
    encoder = _encoder(original.config)
    # By our reader, which opens more formats than ``torch.load``, and without unpickling.
    tensors = {name: np.array(tensor) for name, tensor in containers.read(original.path).items()}
    encoder.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
    encoder = encoder.to(getattr(torch, dtype)).eval()
    return [{ENCODE: _run(encoder, batch, dtype)} for batch in batches]


def _encoder(config: ModelConfig) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        config.hidden_size,
        config.heads,
        config.feed_forward_size,
        dropout=0.0,
        activation=_ACTIVATIONS[config.activation],
        layer_norm_eps=config.norm_eps,
        norm_first=config.pre_process == "n",
        batch_first=True,
    )
    norm = nn.LayerNorm(config.hidden_size, config.norm_eps) if config.final_process else None
    return nn.TransformerEncoder(layer, config.layers, norm, enable_nested_tensor=False)


_ACTIVATIONS = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
}


def _run(encoder: nn.Module, batch: Batch, dtype: str) -> Array:
    assert isinstance(batch, EncoderBatch)
    with torch.inference_mode():
        source = torch.from_numpy(batch.source.astype(dtype))
        return encoder(source, src_key_padding_mask=torch.from_numpy(~batch.valid)).numpy()
