"""Originals in PaddlePaddle: a state dict of ``paddle.nn.TransformerEncoder`` or ``paddle.nn.Transformer``."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
from paddle import nn

from triglot.parity.originals import Original
from triglot.parity.output_names import ENCODE, FORWARD
from triglot.shared.arrays import Array, Bools
from triglot.shared.errors import PortingError
from triglot.shared.inputs import Batch, EncoderBatch, PairBatch
from triglot.shared.model.config import ModelConfig
from triglot.shared.porting import containers


def run(original: Original, batches: Sequence[Batch], dtype: str) -> list[dict[str, Array]]:
    """Return the results of the model for each batch; see ``originals``."""
    paddle.set_default_dtype(getattr(paddle, dtype))
    module = _module(original.config)
    # Read with our own reader, because ``paddle.load`` unpickles.
    tensors = {name: np.array(tensor, dtype) for name, tensor in containers.read(original.path).items()}
    missing, unexpected = module.set_state_dict(tensors)
    if missing or unexpected:
        raise PortingError(f"paddle.nn misses {missing} and does not expect {unexpected}; port the file again")
    module.eval()
    with paddle.no_grad():
        return [_run(module, batch, dtype) for batch in batches]


def _module(config: ModelConfig) -> Any:
    has_biases = config.projection_bias, config.feed_forward_bias
    options: dict[str, Any] = {
        "dim_feedforward": config.feed_forward_size,
        "dropout": 0.0,
        "activation": "relu",  # replaced below: a name cannot say that GELU is approximated
        "normalize_before": config.pre_process == "n",
        "bias_attr": [None if has_bias else False for has_bias in has_biases],
    }
    if config.kind == "encoder_decoder":
        layers = config.layers, config.decoder_layers
        module: Any = nn.Transformer(config.hidden_size, config.heads, *layers, **options)
        stacks = [module.encoder, module.decoder]
    else:
        layer = nn.TransformerEncoderLayer(config.hidden_size, config.heads, **options)
        module = nn.TransformerEncoder(layer, config.layers)
        stacks = [module]
    for stack in stacks:
        stack.norm = _norm(config, bias=config.final_norm_bias) if config.final_process else None
        for layer in stack.layers:
            layer.activation = _ACTIVATIONS[config.activation]
            for name, child in list(layer.named_children()):
                if isinstance(child, nn.LayerNorm):
                    setattr(layer, name, _norm(config, bias=config.norm_bias))
    return module


def _norm(config: ModelConfig, *, bias: bool) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, config.norm_eps, bias_attr=None if bias else False)


_ACTIVATIONS = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate=True),
}


def _run(module: Any, batch: Batch, dtype: str) -> dict[str, Array]:
    assert isinstance(batch, EncoderBatch | PairBatch)
    source, padding = paddle.to_tensor(batch.source.astype(dtype)), _mask(batch.valid[:, None, None, :], dtype)
    if isinstance(batch, EncoderBatch):
        return {ENCODE: module(source, padding).numpy()}
    target = paddle.to_tensor(batch.target.astype(dtype))
    causal = np.tril(np.ones((target.shape[1],) * 2, np.bool_))
    target_mask = _mask(batch.target_valid[:, None, None, :] & causal, dtype)
    decoded = module(source, target, padding, target_mask, padding)
    return {ENCODE: module.encoder(source, padding).numpy(), FORWARD: decoded.numpy()}


def _mask(allowed: Bools, dtype: str) -> Any:
    """Return the mask that is added to the scores."""
    return paddle.to_tensor(np.where(allowed, 0, -np.inf).astype(dtype))
