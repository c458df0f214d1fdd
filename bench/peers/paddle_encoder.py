"""``paddle.nn.TransformerEncoder``."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from ...shared.arrays import Array
from ...shared.checkpoint import Checkpoint
from ...shared.inputs import Batch
from ..cases import Case

_NAMES = (
    ("attention.query", "self_attn.q_proj"),
    ("attention.key", "self_attn.k_proj"),
    ("attention.value", "self_attn.v_proj"),
    ("attention.output", "self_attn.out_proj"),
    ("feed_forward.inner", "linear1"),
    ("feed_forward.output", "linear2"),
)


class Encoder(nn.Layer):
    """Embeddings, a norm, and Paddle's own encoder."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        config, tensors = checkpoint.config, checkpoint.tensors
        self.offset = config.position_offset
        self.token = nn.Embedding(config.source_vocabulary, config.hidden_size)
        self.position = nn.Embedding(len(tensors["embeddings.position.weight"]), config.hidden_size)
        self.segment = nn.Embedding(config.segments, config.hidden_size) if config.segments else None
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_eps)
        layer = nn.TransformerEncoderLayer(
            config.hidden_size,
            config.heads,
            config.feed_forward_size,
            dropout=0.0,
            activation="gelu",
            layer_norm_eps=config.norm_eps,
        )
        self.encoder = nn.TransformerEncoder(layer, config.layers)
        pooler = "heads.pooler.weight" in tensors
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if pooler else None
        state: Any = _state(checkpoint)  # arrays will do, whatever the stubs say
        missing, unknown = self.set_state_dict(state)
        assert not missing, missing
        assert not unknown, unknown

    def forward(self, ids: Tensor, segments: Tensor, hidden: Tensor) -> dict[str, Tensor]:
        """ids, segments: (B, S). hidden: (B, 1, 1, S), added to the scores. Returns "output", and "pooler" if any."""
        x = self.token(ids) + self.position(paddle.arange(ids.shape[1]) + self.offset)
        if self.segment is not None:
            x = x + self.segment(segments)
        x = self.encoder(self.norm(x), hidden)
        found = {"output": x}
        if self.pooler is not None:
            found["pooler"] = paddle.tanh(self.pooler(x[:, 0]))
        return found


class Prepared:
    """The encoder and its inputs."""

    def __init__(self, checkpoint: Checkpoint, case: Case, batches: Sequence[Batch]) -> None:
        paddle.set_device("gpu" if case.cell.device == "cuda" else "cpu")
        self.on_cpu = case.cell.device == "cpu"
        self.model = Encoder(checkpoint)
        self.model.eval()
        self.inputs = [
            (
                paddle.to_tensor(batch.source),
                paddle.to_tensor(batch.segment_ids),
                # What its mask adds to the scores: as in its documentation.
                paddle.to_tensor(np.where(batch.valid, np.float32(0), np.float32(-1e9))[:, None, None, :]),
            )
            for batch in batches
        ]

    def call(self) -> list[Any]:
        """Compute every batch."""
        with paddle.no_grad():
            results = [self.model(*given) for given in self.inputs]
        if not self.on_cpu:
            paddle.device.synchronize()
        return results

    def outputs(self) -> Mapping[str, Array]:
        """What the first batch gives."""
        return {name: value.numpy() for name, value in self.call()[0].items()}


prepare = Prepared


def _state(checkpoint: Checkpoint) -> dict[str, Array]:
    """The weights under Paddle's names; its linear weights are (in, out), as ours."""
    tensors = {name: np.asarray(tensor, np.float32) for name, tensor in checkpoint.tensors.items()}
    state = {f"{name}.weight": tensors[f"embeddings.{name}.weight"] for name in ("token", "position")}
    if checkpoint.config.segments:
        state["segment.weight"] = tensors["embeddings.segment.weight"]
    process = "embeddings.process.norm"
    state |= {"norm.weight": tensors[f"{process}.scale"], "norm.bias": tensors[f"{process}.bias"]}
    for layer in range(checkpoint.config.layers):
        at = f"encoder.layers.{layer}"
        for kind in ("weight", "bias"):
            state |= {f"{at}.{theirs}.{kind}": tensors[f"{at}.{ours}.{kind}"] for ours, theirs in _NAMES}
        for ours, theirs in (("post_attention", "norm1"), ("post_feed_forward", "norm2")):
            state[f"{at}.{theirs}.weight"] = tensors[f"{at}.{ours}.norm.scale"]
            state[f"{at}.{theirs}.bias"] = tensors[f"{at}.{ours}.norm.bias"]
    if "heads.pooler.weight" in tensors:
        state |= {f"pooler.{kind}": tensors[f"heads.pooler.{kind}"] for kind in ("weight", "bias")}
    return state
