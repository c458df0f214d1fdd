"""``torch.nn.TransformerEncoder`` as an arm, with its fast path for inference."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from triglot.bench.run.cases import Case
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import EncoderBatch
from triglot.shared.model.config import ModelConfig

from .names import encoder_names
from .torch_arm import TorchArm

_LINEAR = (
    ("attention.output", "self_attn.out_proj"),
    ("feed_forward.inner", "linear1"),
    ("feed_forward.output", "linear2"),
)
_NORMS = (("post_attention.norm", "norm1"), ("post_feed_forward.norm", "norm2"))
_PACKED = ("query", "key", "value")


class Encoder(nn.Module):
    """Embeddings, a norm, and PyTorch's own encoder."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        config, tensors = checkpoint.config, checkpoint.tensors
        size = config.hidden_size
        self.offset = config.position_offset
        self.token = nn.Embedding(config.source_vocabulary, size)
        self.position = nn.Embedding(len(tensors["embeddings.position.weight"]), size)
        self.segment = nn.Embedding(config.segments, size) if config.segments else None
        self.norm = nn.LayerNorm(size, config.norm_eps)
        layer = nn.TransformerEncoderLayer(
            size,
            config.heads,
            config.feed_forward_size,
            dropout=0.0,
            activation="gelu",
            layer_norm_eps=config.norm_eps,
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, config.layers)
        self.pooler = nn.Linear(size, size) if "pooler" in config.heads_on_top else None
        self.load_state_dict({name: torch.from_numpy(array) for name, array in _state(checkpoint).items()})

    def forward(self, ids: Tensor, segments: Tensor | None, padding: Tensor) -> dict[str, Tensor]:
        """ids, segments: (B, S). padding: bool (B, S), True = hidden. Returns "output", and "pooler" if any."""
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device) + self.offset)
        if self.segment is not None:
            x = x + self.segment(segments)
        x = self.encoder(self.norm(x), src_key_padding_mask=padding)
        outputs = {"output": x}
        if self.pooler is not None:
            outputs["pooler"] = torch.tanh(self.pooler(x[:, 0]))
        return outputs


def prepare(checkpoint: Checkpoint, case: Case, batches: Sequence[EncoderBatch]) -> TorchArm:
    """Build the encoder and its inputs."""
    device = case.cell.device
    model = Encoder(checkpoint).to(device, getattr(torch, case.cell.dtype)).eval()
    inputs = [
        tuple(
            None if array is None else torch.from_numpy(array).to(device)
            for array in (batch.source, batch.segment_ids, ~batch.valid)
        )
        for batch in batches
    ]
    return TorchArm(
        model, lambda tensors: model(*tensors), inputs, case, batches, partial(_canonical, checkpoint.config)
    )


def _names(config: ModelConfig) -> dict[str, str]:
    """Map canonical names to those of PyTorch, for parameters that are separate in both."""
    return encoder_names(config, _LINEAR, _NORMS, layer="encoder.layers")


def _state(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the weights under PyTorch's names. Linear weights are (out, in); query, key and value are packed."""
    tensors = {name: np.asarray(tensor, np.float32) for name, tensor in checkpoint.tensors.items()}
    state = {stock: _transposed(name, tensors[name]) for name, stock in _names(checkpoint.config).items()}
    for layer in range(checkpoint.config.layers):
        at = f"encoder.layers.{layer}"
        for kind in ("weight", "bias"):
            names = [f"{at}.attention.{name}.{kind}" for name in _PACKED]
            packed = np.concatenate([_transposed(name, tensors[name]) for name in names])
            state[f"{at}.self_attn.in_proj_{kind}"] = packed
    return state


def _canonical(config: ModelConfig, state: Mapping[str, Array]) -> dict[str, Array]:
    """Return PyTorch's weights under the canonical names, the inverse of ``_state``."""
    tensors = {name: _transposed(name, state[stock]) for name, stock in _names(config).items()}
    for layer in range(config.layers):
        at = f"encoder.layers.{layer}"
        for kind in ("weight", "bias"):
            names = [f"{at}.attention.{name}.{kind}" for name in _PACKED]
            parts = np.split(state[f"{at}.self_attn.in_proj_{kind}"], len(_PACKED))
            tensors |= {name: _transposed(name, part) for name, part in zip(names, parts, strict=True)}
    return tensors


def _transposed(canonical: str, array: Array) -> Array:
    linear = array.ndim == 2 and not canonical.startswith("embeddings.")
    return np.ascontiguousarray(array.T) if linear else array
