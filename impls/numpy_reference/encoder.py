"""The encoder: a stack of layers of self-attention and feed-forward.

Shapes: B batch, S length, H heads, D hidden size.
"""

from numpy import ndarray

from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe, under

from .attention import MultiHeadAttention
from .feed_forward import FeedForward
from .process import PrePostProcess


class EncoderLayer:
    """Self-attention, then feed-forward ("Attention is all you need", section 3.1).

    Each sublayer stands between a pre- and a post-process.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.pre_attention = PrePostProcess(config.pre_process, config.residual_dropout, config)
        self.attention = MultiHeadAttention(config)
        self.post_attention = PrePostProcess(config.post_process, config.residual_dropout, config)
        self.pre_feed_forward = PrePostProcess(config.pre_process, config.residual_dropout, config)
        self.feed_forward = FeedForward(config)
        self.post_feed_forward = PrePostProcess(config.post_process, config.residual_dropout, config)

    def __call__(self, x: ndarray, allowed: ndarray, probe: Probe | None = None) -> ndarray:
        """Return the output of the layer, (B, S, D). x: (B, S, D). allowed: bool, broadcastable to (B, H, S, S)."""
        residual = x
        x = self.pre_attention(x, probe=under(probe, "pre_attention"))
        x, _ = self.attention(x, x, x, allowed, probe=under(probe, "attention"))
        x = self.post_attention(x, residual, probe=under(probe, "post_attention"))
        residual = x
        x = self.pre_feed_forward(x, probe=under(probe, "pre_feed_forward"))
        x = self.feed_forward(x, probe=under(probe, "feed_forward"))
        return self.post_feed_forward(x, residual, probe=under(probe, "post_feed_forward"))


class Encoder:
    """The layers, then the final process."""

    def __init__(self, config: ModelConfig) -> None:
        self.layers = [EncoderLayer(config) for _ in range(config.layers)]
        self.final = PrePostProcess(
            config.final_process, config.residual_dropout, config, norm_bias=config.final_norm_bias
        )

    def __call__(self, x: ndarray, allowed: ndarray, probe: Probe | None = None) -> ndarray:
        """Return the output of the stack, (B, S, D). x: (B, S, D). allowed: bool, broadcastable to (B, H, S, S)."""
        for i, layer in enumerate(self.layers):
            x = layer(x, allowed, probe=under(probe, f"layers.{i}"))
        return self.final(x, probe=under(probe, "final"))
