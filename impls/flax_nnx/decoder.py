"""The decoder: a stack of layers of self-attention, cross-attention to the encoder's output, and feed-forward.

Shapes: B batch, T target length, S source length, H heads, K key size, V value size, D hidden size.
"""

from collections.abc import Sequence

from flax import nnx
from jax import Array
from jax import numpy as jnp

from triglot.shared.model.config import ModelConfig
from triglot.shared.model.probe import Probe, under

from .attention import MultiHeadAttention
from .feed_forward import FeedForward
from .process import PrePostProcess


class KeyValueCache:
    """The keys and values of one layer, cached in generation so that every token is projected only once.

    keys: (B, H, T, K) and values: (B, H, T, V) of the target; the next token goes to ``position``. memory_keys:
    (B, H, S, K) and memory_values: (B, H, S, V) of the memory, which is the output of the encoder.
    """

    def __init__(
        self, keys: Array, values: Array, memory_keys: Array, memory_values: Array, position: int | Array
    ) -> None:
        self.keys = keys
        self.values = values
        self.memory_keys = memory_keys
        self.memory_values = memory_values
        self.position = position

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Store the keys (B, H, 1, K) and values (B, H, 1, V) of the token at ``position``; return the whole cache."""
        is_new = (jnp.arange(self.keys.shape[2]) == self.position)[:, None]
        self.keys = jnp.where(is_new, keys, self.keys)
        self.values = jnp.where(is_new, values, self.values)
        return self.keys, self.values


class DecoderLayer(nnx.Module):
    """Self-attention, cross-attention, then feed-forward ("Attention is all you need", section 3.1).

    Each sublayer stands between a pre- and a post-process.
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
        self,
        x: Array,
        allowed: Array,
        memory: Array,
        memory_allowed: Array,
        cache: KeyValueCache | None = None,
        probe: Probe | None = None,
    ) -> Array:
        """Return the output of the layer, (B, T, D).

        x: (B, T, D). allowed: bool, broadcastable to (B, H, T, T). memory: (B, S, D), the output of the encoder.
        memory_allowed: bool, broadcastable to (B, H, T, S). cache: for generation; x is then one token, (B, 1, D).
        """
        residual = x
        x = self.pre_self_attention(x, probe=under(probe, "pre_self_attention"))
        keys, values = self.self_attention.project(x, x, probe=under(probe, "self_attention"))
        if cache is not None:
            keys, values = cache.update(keys, values)
        x, _ = self.self_attention.attend(x, keys, values, allowed, probe=under(probe, "self_attention"))
        x = self.post_self_attention(x, residual, probe=under(probe, "post_self_attention"))
        residual = x
        x = self.pre_cross_attention(x, probe=under(probe, "pre_cross_attention"))
        if cache is not None:
            keys, values = cache.memory_keys, cache.memory_values
        else:
            keys, values = self.project_memory(memory, probe)
        x, _ = self.cross_attention.attend(x, keys, values, memory_allowed, probe=under(probe, "cross_attention"))
        x = self.post_cross_attention(x, residual, probe=under(probe, "post_cross_attention"))
        residual = x
        x = self.pre_feed_forward(x, probe=under(probe, "pre_feed_forward"))
        x = self.feed_forward(x, probe=under(probe, "feed_forward"))
        return self.post_feed_forward(x, residual, probe=under(probe, "post_feed_forward"))

    def project_memory(self, memory: Array, probe: Probe | None = None) -> tuple[Array, Array]:
        """Return the memory's keys (B, H, S, K) and values (B, H, S, V), which all target tokens share."""
        if self.config.normalize_memory:
            # Article 000 normalises query, key and value with the same norm.
            memory = self.pre_cross_attention(memory, probe=under(probe, "memory"))
        return self.cross_attention.project(memory, memory, probe=under(probe, "cross_attention"))


class Decoder(nnx.Module):
    """The layers, then the final process."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([DecoderLayer(config, rngs=rngs) for _ in range(config.decoder_layers)])
        self.final = PrePostProcess(
            config.final_process, config.residual_dropout, config, norm_bias=config.final_norm_bias, rngs=rngs
        )

    def __call__(
        self,
        x: Array,
        allowed: Array,
        memory: Array,
        memory_allowed: Array,
        caches: Sequence[KeyValueCache] | None = None,
        probe: Probe | None = None,
    ) -> Array:
        """Return the output of the stack, (B, T, D). caches: one for each layer. Otherwise as in ``DecoderLayer``."""
        for i, layer in enumerate(self.layers):
            cache = None if caches is None else caches[i]
            x = layer(x, allowed, memory, memory_allowed, cache, probe=under(probe, f"layers.{i}"))
        return self.final(x, probe=under(probe, "final"))
