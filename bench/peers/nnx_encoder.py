"""An encoder of the parts that Flax NNX brings: ``nnx.MultiHeadAttention``, ``nnx.Linear``, ``nnx.LayerNorm``."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import Array as JaxArray
from jax import numpy as jnp

from ...shared.arrays import Array
from ...shared.checkpoint import Checkpoint
from ...shared.config import ModelConfig
from ...shared.inputs import Batch
from ..cases import Case

_LINEAR = (("feed_forward.inner", "inner"), ("feed_forward.output", "outer"))
_NORMS = (("post_attention.norm", "attention_norm"), ("post_feed_forward.norm", "outer_norm"))


class Layer(nnx.Module):
    """Attention and feed-forward, each with a residual connection and a norm behind it."""

    def __init__(self, config: ModelConfig, dtype: Any, rngs: nnx.Rngs) -> None:
        kinds: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        size, eps = config.hidden_size, config.norm_eps
        self.attention = nnx.MultiHeadAttention(config.heads, size, decode=False, deterministic=True, **kinds)
        self.attention_norm = nnx.LayerNorm(size, epsilon=eps, **kinds)
        self.inner = nnx.Linear(size, config.feed_forward_size, **kinds)
        self.outer = nnx.Linear(config.feed_forward_size, size, **kinds)
        self.outer_norm = nnx.LayerNorm(size, epsilon=eps, **kinds)

    def __call__(self, x: JaxArray, mask: JaxArray) -> JaxArray:
        """x: (B, S, D). mask: bool (B, 1, 1, S), True = may attend."""
        x = self.attention_norm(x + self.attention(x, mask=mask))
        return self.outer_norm(x + self.outer(nnx.gelu(self.inner(x), approximate=False)))


class Encoder(nnx.Module):
    """Embeddings, a norm, and the layers."""

    def __init__(self, config: ModelConfig, positions: int, dtype: Any, rngs: nnx.Rngs) -> None:
        kinds: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        size = config.hidden_size
        self.offset = config.position_offset
        self.has_segments, self.has_pooler = bool(config.segments), "pooler" in config.heads_on_top
        self.token = nnx.Embed(config.source_vocabulary, size, **kinds)
        self.position = nnx.Embed(positions, size, **kinds)
        self.segment = nnx.Embed(max(1, config.segments), size, **kinds)
        self.norm = nnx.LayerNorm(size, epsilon=config.norm_eps, **kinds)
        self.layers = nnx.List([Layer(config, dtype, rngs) for _ in range(config.layers)])
        self.pooler = nnx.Linear(size, size, **kinds)

    def __call__(self, ids: JaxArray, segments: JaxArray, valid: JaxArray) -> dict[str, JaxArray]:
        """ids, segments, valid: (B, S). Returns "output" (B, S, D), and "pooler" (B, D) if there is one."""
        x = self.token(ids) + self.position(jnp.arange(ids.shape[1]) + self.offset)
        if self.has_segments:
            x = x + self.segment(segments)
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, valid[:, None, None, :])
        return {"output": x} | ({"pooler": jnp.tanh(self.pooler(x[:, 0]))} if self.has_pooler else {})


class Prepared:
    """The encoder, compiled, and its inputs."""

    def __init__(self, checkpoint: Checkpoint, case: Case, batches: Sequence[Batch]) -> None:
        device = jax.devices(case.cell.device)[0]
        positions = len(checkpoint.tensors["embeddings.position.weight"])
        model = Encoder(checkpoint.config, positions, getattr(jnp, case.cell.dtype), nnx.Rngs(0))
        _load(model, checkpoint)
        graph, parameters = nnx.split(model)
        run = jax.jit(lambda parameters, *given: nnx.merge(graph, parameters)(*given))
        self.run = partial(run, jax.device_put(parameters, device))
        self.inputs = [
            tuple(jax.device_put(array, device) for array in (batch.source, batch.segment_ids, batch.valid))
            for batch in batches
        ]

    def call(self) -> list[Any]:
        """Compute every batch."""
        with jax.default_matmul_precision("highest"):
            return jax.block_until_ready([self.run(*given) for given in self.inputs])

    def outputs(self) -> Mapping[str, Array]:
        """What the first batch gives."""
        return {name: np.asarray(value, np.float32) for name, value in self.call()[0].items()}


prepare = Prepared


def _load(model: Encoder, checkpoint: Checkpoint) -> None:
    tensors, config = checkpoint.tensors, checkpoint.config
    _set(model.token.embedding, tensors["embeddings.token.weight"])
    _set(model.position.embedding, tensors["embeddings.position.weight"])
    if config.segments:
        _set(model.segment.embedding, tensors["embeddings.segment.weight"])
    _norm(model.norm, checkpoint, "embeddings.process.norm")
    for number, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        at = f"encoder.layers.{number}"
        for name in ("query", "key", "value"):
            part = getattr(layer.attention, name)
            _set(part.kernel, tensors[f"{at}.attention.{name}.weight"])
            _set(part.bias, tensors[f"{at}.attention.{name}.bias"])
        _set(layer.attention.out.kernel, tensors[f"{at}.attention.output.weight"])
        _set(layer.attention.out.bias, tensors[f"{at}.attention.output.bias"])
        for ours, theirs in _LINEAR:
            _set(getattr(layer, theirs).kernel, tensors[f"{at}.{ours}.weight"])
            _set(getattr(layer, theirs).bias, tensors[f"{at}.{ours}.bias"])
        for ours, theirs in _NORMS:
            _norm(getattr(layer, theirs), checkpoint, f"{at}.{ours}")
    if "pooler" in config.heads_on_top:
        _set(model.pooler.kernel, tensors["heads.pooler.weight"])
        _set(model.pooler.bias, tensors["heads.pooler.bias"])


def _norm(norm: nnx.LayerNorm, checkpoint: Checkpoint, name: str) -> None:
    _set(norm.scale, checkpoint.tensors[f"{name}.scale"])
    _set(norm.bias, checkpoint.tensors[f"{name}.bias"])


def _set(parameter: Any, tensor: Array) -> None:
    """Give a parameter its value; heads are an axis of their own in Flax, and lie side by side in ours."""
    value = parameter.get_value()
    parameter.set_value(jnp.asarray(np.asarray(tensor, np.float32).reshape(value.shape), value.dtype))
