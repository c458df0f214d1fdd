"""Originals in PyTorch: a state dict of ``torch.nn.TransformerEncoder`` or ``torch.nn.Transformer``."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from triglot.parity.originals import Original
from triglot.parity.output_names import ENCODE, FORWARD
from triglot.shared.arrays import Array
from triglot.shared.inputs import Batch, EncoderBatch, PairBatch
from triglot.shared.model.config import ModelConfig
from triglot.shared.porting import containers


def run(original: Original, batches: Sequence[Batch], dtype: str) -> list[dict[str, Array]]:
    """Return the results of the model for each batch; see ``originals``."""
    module = _module(original.config)
    # Read with our own reader, because it opens more formats than ``torch.load`` and never unpickles.
    tensors = {name: np.array(tensor, dtype) for name, tensor in containers.read(original.path).items()}
    module.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
    module = module.to(getattr(torch, dtype)).eval()
    with torch.inference_mode():
        return [_run(module, batch, dtype) for batch in batches]


def _module(config: ModelConfig) -> Any:
    size, heads = config.hidden_size, config.heads
    options: dict[str, Any] = {
        "dim_feedforward": config.feed_forward_size,
        "dropout": 0.0,
        "activation": _ACTIVATIONS[config.activation],
        "norm_first": config.pre_process == "n",
        "batch_first": True,
        "bias": config.projection_bias,
    }
    layer = nn.TransformerEncoderLayer(size, heads, **options)
    module: Any = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
    stacks = [module]
    if config.kind == "encoder_decoder":
        decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(size, heads, **options), config.decoder_layers)
        stacks.append(decoder)
        module = nn.Transformer(size, heads, custom_encoder=module, custom_decoder=decoder, batch_first=True)
    for stack in stacks:
        stack.norm = _norm(config, bias=config.final_norm_bias) if config.final_process else None
        for layer in stack.layers:
            for name, child in list(layer.named_children()):
                if isinstance(child, nn.LayerNorm):
                    setattr(layer, name, _norm(config, bias=config.norm_bias))
    return module


def _norm(config: ModelConfig, *, bias: bool) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, config.norm_eps, bias=bias)


_ACTIVATIONS = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
}


def _run(module: Any, batch: Batch, dtype: str) -> dict[str, Array]:
    assert isinstance(batch, EncoderBatch | PairBatch)
    source, padding = torch.from_numpy(batch.source.astype(dtype)), torch.from_numpy(~batch.valid)
    if isinstance(batch, EncoderBatch):
        return {ENCODE: module(source, src_key_padding_mask=padding).numpy()}
    target = torch.from_numpy(batch.target.astype(dtype))
    encoded = module.encoder(source, src_key_padding_mask=padding)
    decoded = module(
        source,
        target,
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
        tgt_key_padding_mask=torch.from_numpy(~batch.target_valid),
        tgt_mask=torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1),
    )
    return {ENCODE: encoded.numpy(), FORWARD: decoded.numpy()}
