"""``torch.nn.TransformerEncoder``, with the fast path that it takes for inference."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...shared.arrays import Array
from ...shared.checkpoint import Checkpoint
from ...shared.inputs import Batch
from ..cases import Case


class Encoder(nn.Module):
    """Embeddings, a norm, and PyTorch's own encoder."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        config, tensors = checkpoint.config, checkpoint.tensors
        self.offset = config.position_offset
        self.token, self.position, self.segment = (
            nn.Embedding.from_pretrained(_tensor(tensors[f"embeddings.{name}.weight"]))
            if f"embeddings.{name}.weight" in tensors
            else None
            for name in ("token", "position", "segment")
        )
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_eps)
        layer = nn.TransformerEncoderLayer(
            config.hidden_size,
            config.heads,
            config.feed_forward_size,
            dropout=0.0,
            activation="gelu",
            layer_norm_eps=config.norm_eps,
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, config.layers)
        self.load_state_dict(_state(checkpoint), strict=False)
        if "heads.pooler.weight" in tensors:
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
            self.pooler.weight.data = _tensor(tensors["heads.pooler.weight"]).T.contiguous()
            self.pooler.bias.data = _tensor(tensors["heads.pooler.bias"])
        else:
            self.pooler = None

    def forward(self, ids: Tensor, segments: Tensor, padding: Tensor) -> dict[str, Tensor]:
        """ids, segments: (B, S). padding: bool (B, S), True = hidden. Returns "output", and "pooler" if any."""
        assert self.token is not None
        assert self.position is not None
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device) + self.offset)
        if self.segment is not None:
            x = x + self.segment(segments)
        x = self.encoder(self.norm(x), src_key_padding_mask=padding)
        found = {"output": x}
        if self.pooler is not None:
            found["pooler"] = torch.tanh(self.pooler(x[:, 0]))
        return found


class Prepared:
    """The encoder and its inputs."""

    def __init__(self, checkpoint: Checkpoint, case: Case, batches: Sequence[Batch]) -> None:
        self.device = case.cell.device
        self.model = Encoder(checkpoint).to(self.device, getattr(torch, case.cell.dtype)).eval()
        self.inputs = [
            tuple(torch.from_numpy(array).to(self.device) for array in (batch.source, batch.segment_ids, ~batch.valid))
            for batch in batches
        ]

    def call(self) -> list[Any]:
        """Compute every batch."""
        with torch.inference_mode():
            results = [self.model(*given) for given in self.inputs]
        if self.device == "cuda":
            torch.cuda.synchronize()
        return results

    def outputs(self) -> Mapping[str, Array]:
        """What the first batch gives."""
        return {name: value.float().cpu().numpy() for name, value in self.call()[0].items()}


prepare = Prepared


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, np.float32))


def _state(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The weights under PyTorch's names; it packs query, key and value together."""
    tensors = checkpoint.tensors
    process = "embeddings.process.norm"
    state = {"norm.weight": _tensor(tensors[f"{process}.scale"]), "norm.bias": _tensor(tensors[f"{process}.bias"])}
    for layer in range(checkpoint.config.layers):
        ours, theirs = f"encoder.layers.{layer}", f"encoder.layers.{layer}"
        packed = [tensors[f"{ours}.attention.{name}.weight"] for name in ("query", "key", "value")]
        state[f"{theirs}.self_attn.in_proj_weight"] = _tensor(np.concatenate(packed, axis=1)).T.contiguous()
        packed = [tensors[f"{ours}.attention.{name}.bias"] for name in ("query", "key", "value")]
        state[f"{theirs}.self_attn.in_proj_bias"] = _tensor(np.concatenate(packed))
        for mine, other in (
            ("attention.output", "self_attn.out_proj"),
            ("feed_forward.inner", "linear1"),
            ("feed_forward.output", "linear2"),
        ):
            state[f"{theirs}.{other}.weight"] = _tensor(tensors[f"{ours}.{mine}.weight"]).T.contiguous()
            state[f"{theirs}.{other}.bias"] = _tensor(tensors[f"{ours}.{mine}.bias"])
        for mine, other in (("post_attention", "norm1"), ("post_feed_forward", "norm2")):
            state[f"{theirs}.{other}.weight"] = _tensor(tensors[f"{ours}.{mine}.norm.scale"])
            state[f"{theirs}.{other}.bias"] = _tensor(tensors[f"{ours}.{mine}.norm.bias"])
    return state
