"""The decoder: a stack of layers of self-attention, cross-attention and feed-forward, each between its processes.

Shapes: B batch, T target length, S source length, H heads, D hidden size.
"""

from flax import nnx
from jax import Array

from ...shared.config import ModelConfig
from ...shared.probe import Probe, under
from .attention import MultiHeadAttention
from .feed_forward import FeedForward
from .process import PrePostProcess


class DecoderLayer(nnx.Module):
    """Self-attention, cross-attention to the memory, then feed-forward. x: (B, T, D). memory: (B, S, D).

    allowed: bool, broadcastable to (B, H, T, T). memory_allowed: bool, broadcastable to (B, H, T, S).
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.pre_self_attention = PrePostProcess(config.pre_process, config.residual_dropout, config, rngs=rngs)
        self.self_attention = MultiHeadAttention(config, rngs=rngs)
        self.post_self_attention = PrePostProcess(config.post_process, config.residual_dropout, config, rngs=rngs)
        self.pre_cross_attention = PrePostProcess(config.pre_process, config.residual_dropout, config, rngs=rngs)
        self.cross_attention = MultiHeadAttention(config, rngs=rngs)
        self.post_cross_attention = PrePostProcess(config.post_process, config.residual_dropout, config, rngs=rngs)
        self.pre_feed_forward = PrePostProcess(config.pre_process, config.residual_dropout, config, rngs=rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)
        self.post_feed_forward = PrePostProcess(config.post_process, config.residual_dropout, config, rngs=rngs)

    def __call__(
        self, x: Array, allowed: Array, memory: Array, memory_allowed: Array, probe: Probe | None = None
    ) -> Array:
        residual = x
        x = self.pre_self_attention(x, probe=under(probe, "pre_self_attention"))
        x = self.self_attention(x, x, x, allowed, probe=under(probe, "self_attention"))
        x = self.post_self_attention(x, residual, probe=under(probe, "post_self_attention"))
        residual = x
        x = self.pre_cross_attention(x, probe=under(probe, "pre_cross_attention"))
        if self.config.normalize_memory:
            # Article 000: one norm serves query, key and value.
            memory = self.pre_cross_attention(memory, probe=under(probe, "memory"))
        x = self.cross_attention(x, memory, memory, memory_allowed, probe=under(probe, "cross_attention"))
        x = self.post_cross_attention(x, residual, probe=under(probe, "post_cross_attention"))
        residual = x
        x = self.pre_feed_forward(x, probe=under(probe, "pre_feed_forward"))
        x = self.feed_forward(x, probe=under(probe, "feed_forward"))
        return self.post_feed_forward(x, residual, probe=under(probe, "post_feed_forward"))


class Decoder(nnx.Module):
    """The layers, then the final process. Shapes as in ``DecoderLayer``."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([DecoderLayer(config, rngs=rngs) for _ in range(config.decoder_layers)])
        self.final = PrePostProcess(config.final_process, config.residual_dropout, config, rngs=rngs)

    def __call__(
        self, x: Array, allowed: Array, memory: Array, memory_allowed: Array, probe: Probe | None = None
    ) -> Array:
        for i, layer in enumerate(self.layers):
            x = layer(x, allowed, memory, memory_allowed, probe=under(probe, f"layers.{i}"))
        return self.final(x, probe=under(probe, "final"))
