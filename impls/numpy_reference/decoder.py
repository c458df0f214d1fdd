"""The decoder: a stack of layers of self-attention, cross-attention and feed-forward, each between its processes.

Shapes: B batch, T target length, S source length, H heads, D hidden size.
"""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe, under

from .attention import MultiHeadAttention
from .feed_forward import FeedForward
from .process import PrePostProcess


class Past:
    """What a layer keeps from one target token to the next, so that each is computed once.

    keys: (B, H, T, K) and values: (B, H, T, V) of the target, up to ``place``, where the next token comes;
    memory_keys: (B, H, S, K) and memory_values: (B, H, S, V).
    """

    def __init__(
        self, keys: ndarray, values: ndarray, memory_keys: ndarray, memory_values: ndarray, place: int | ndarray
    ) -> None:
        self.keys = keys
        self.values = values
        self.memory_keys = memory_keys
        self.memory_values = memory_values
        self.place = place

    def extend(self, keys: ndarray, values: ndarray) -> tuple[ndarray, ndarray]:
        """All keys and values so far, with those of the token at ``place``, (B, H, 1, K) and (B, H, 1, V)."""
        here = (np.arange(self.keys.shape[2]) == self.place)[:, None]
        self.keys = np.where(here, keys, self.keys)
        self.values = np.where(here, values, self.values)
        return self.keys, self.values


class DecoderLayer:
    """Self-attention, cross-attention to the memory, then feed-forward. x: (B, T, D). memory: (B, S, D).

    allowed: bool, broadcastable to (B, H, T, T). memory_allowed: bool, broadcastable to (B, H, T, S).
    """

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.pre_self_attention = PrePostProcess(config.pre_process, config.residual_dropout, config)
        self.self_attention = MultiHeadAttention(config)
        self.post_self_attention = PrePostProcess(config.post_process, config.residual_dropout, config)
        self.pre_cross_attention = PrePostProcess(config.pre_process, config.residual_dropout, config)
        self.cross_attention = MultiHeadAttention(config)
        self.post_cross_attention = PrePostProcess(config.post_process, config.residual_dropout, config)
        self.pre_feed_forward = PrePostProcess(config.pre_process, config.residual_dropout, config)
        self.feed_forward = FeedForward(config)
        self.post_feed_forward = PrePostProcess(config.post_process, config.residual_dropout, config)

    def __call__(
        self,
        x: ndarray,
        allowed: ndarray,
        memory: ndarray,
        memory_allowed: ndarray,
        past: Past | None = None,
        probe: Probe | None = None,
    ) -> ndarray:
        residual = x
        x = self.pre_self_attention(x, probe=under(probe, "pre_self_attention"))
        keys, values = self.self_attention.project(x, x, probe=under(probe, "self_attention"))
        if past is not None:
            keys, values = past.extend(keys, values)
        x, _ = self.self_attention.attend(x, keys, values, allowed, probe=under(probe, "self_attention"))
        x = self.post_self_attention(x, residual, probe=under(probe, "post_self_attention"))
        residual = x
        x = self.pre_cross_attention(x, probe=under(probe, "pre_cross_attention"))
        if past is not None:
            keys, values = past.memory_keys, past.memory_values
        else:
            keys, values = self.project_memory(memory, probe)
        x, _ = self.cross_attention.attend(x, keys, values, memory_allowed, probe=under(probe, "cross_attention"))
        x = self.post_cross_attention(x, residual, probe=under(probe, "post_cross_attention"))
        residual = x
        x = self.pre_feed_forward(x, probe=under(probe, "pre_feed_forward"))
        x = self.feed_forward(x, probe=under(probe, "feed_forward"))
        return self.post_feed_forward(x, residual, probe=under(probe, "post_feed_forward"))

    def project_memory(self, memory: ndarray, probe: Probe | None = None) -> tuple[ndarray, ndarray]:
        """What the cross-attention attends to, (B, H, S, K) and (B, H, S, V): the same for every target token."""
        if self.config.normalize_memory:
            # Article 000: one norm serves query, key and value.
            memory = self.pre_cross_attention(memory, probe=under(probe, "memory"))
        return self.cross_attention.project(memory, memory, probe=under(probe, "cross_attention"))


class Decoder:
    """The layers, then the final process. Shapes as in ``DecoderLayer``."""

    def __init__(self, config: ModelConfig) -> None:
        self.layers = [DecoderLayer(config) for _ in range(config.decoder_layers)]
        self.final = PrePostProcess(config.final_process, config.residual_dropout, config)

    def __call__(
        self,
        x: ndarray,
        allowed: ndarray,
        memory: ndarray,
        memory_allowed: ndarray,
        pasts: Sequence[Past] | None = None,
        probe: Probe | None = None,
    ) -> ndarray:
        for i, layer in enumerate(self.layers):
            past = None if pasts is None else pasts[i]
            x = layer(x, allowed, memory, memory_allowed, past, probe=under(probe, f"layers.{i}"))
        return self.final(x, probe=under(probe, "final"))
