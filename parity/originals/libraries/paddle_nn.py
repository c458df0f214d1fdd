"""Originals in PaddlePaddle: a state dict of ``paddle.nn.TransformerEncoder``."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
from paddle import nn

from triglot.parity.originals import Original
from triglot.parity.output_names import ENCODE
from triglot.shared.arrays import Array
from triglot.shared.errors import PortingError
from triglot.shared.inputs import Batch, EncoderBatch
from triglot.shared.model.config import ModelConfig
from triglot.shared.porting import containers


def run(original: Original, batches: Sequence[Batch], dtype: str) -> list[dict[str, Array]]:
    """Return what the model computes of each batch; see ``originals``."""
    paddle.set_default_dtype(getattr(paddle, dtype))
    encoder = _encoder(original.config)
    # By our reader, because ``paddle.load`` unpickles.
    tensors = {name: np.array(tensor).astype(dtype) for name, tensor in containers.read(original.path).items()}
    missing, unexpected = encoder.set_state_dict(tensors)
    if missing or unexpected:
        raise PortingError(f"paddle.nn misses {missing} and does not expect {unexpected}; port the file again")
    encoder.eval()
    return [{ENCODE: _run(encoder, batch, dtype)} for batch in batches]


def _encoder(config: ModelConfig) -> Any:
    layer = nn.TransformerEncoderLayer(
        config.hidden_size,
        config.heads,
        config.feed_forward_size,
        dropout=0.0,
        activation="relu",  # replaced below: a name cannot say that GELU is approximated
        normalize_before=config.pre_process == "n",
        layer_norm_eps=config.norm_eps,
    )
    norm = nn.LayerNorm(config.hidden_size, config.norm_eps) if config.final_process else None
    encoder = nn.TransformerEncoder(layer, config.layers, norm)
    for each in encoder.layers:
        each.activation = _ACTIVATIONS[config.activation]
    return encoder


_ACTIVATIONS = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate=True),
}


def _run(encoder: Any, batch: Batch, dtype: str) -> Array:
    assert isinstance(batch, EncoderBatch)
    mask = np.where(batch.valid, 0, -np.inf).astype(dtype)[:, None, None, :]
    with paddle.no_grad():
        return encoder(paddle.to_tensor(batch.source.astype(dtype)), paddle.to_tensor(mask)).numpy()
