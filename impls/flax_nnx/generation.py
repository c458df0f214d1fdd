"""Greedy decoding: target tokens one by one, the likeliest each time.

Shapes: B batch, S source length, T target length, D hidden size, H heads, V target vocabulary.
"""

from functools import partial

import jax
from flax import nnx
from jax import Array
from jax import numpy as jnp

from . import masks
from .decoder import KeyValueCache
from .transformer import Transformer

# One layer's key-value cache: keys and values of the target so far, and those of the memory.
LayerCache = tuple[Array, Array, Array, Array]
Carry = tuple[Array, Array, Array, list[LayerCache] | None]


class Generator:
    """Decodes with a transformer. ``source`` and ``valid``: (B, S).

    ``cached``: use a key-value cache. Without it, the decoder reads the whole target again for each new token, as
    article 000 does.
    """

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer

    def generate(self, source: Array, valid: Array, length: int, cached: bool) -> Array:
        """Return target ids (B, length): the start id, then the highest scores; pad ids after the end id."""
        # The whole loop is compiled: step by step, JAX takes a hundred times as long.
        graph, parameters = nnx.split(self.transformer, nnx.Param)
        return self._loop(graph, parameters, source, valid, length, cached)

    @staticmethod
    @partial(jax.jit, static_argnums=(0, 4, 5))
    def _loop(
        graph: nnx.GraphDef[Transformer],
        parameters: nnx.State,
        source: Array,
        valid: Array,
        length: int,
        cached: bool,
    ) -> Array:
        generator = Generator(nnx.merge(graph, parameters))
        start_id, end_id, pad_id = generator.transformer.config.special_ids
        memory = generator.transformer.encode(source, valid)
        target = jnp.full((len(source), length), pad_id, jnp.int32)
        target = target.at[:, 0].set(start_id)
        finished = jnp.zeros(len(source), jnp.bool_)
        cache = generator.empty_cache(memory, length) if cached else None

        def step(carry: Carry) -> Carry:
            position, target, finished, cache = carry
            scores, cache = generator.step(target, position, memory, valid, cache)
            likeliest = scores.argmax(axis=-1).astype(jnp.int32)
            token = jnp.where(finished, pad_id, likeliest)
            target = target.at[:, position + 1].set(token)
            finished = finished | (token == end_id)
            return position + 1, target, finished, cache

        def unfinished(carry: Carry) -> Array:
            position, _, finished, _ = carry
            return (position < length - 1) & ~finished.all()

        _, target, _, _ = jax.lax.while_loop(unfinished, step, (jnp.asarray(0), target, finished, cache))
        return target

    def step(
        self, target: Array, position: Array, memory: Array, valid: Array, cache: list[LayerCache] | None
    ) -> tuple[Array, list[LayerCache] | None]:
        """Return the scores of the token after ``position``, (B, V), and the new cache.

        target: (B, T), padding after ``position``. memory: (B, S, D). cache: None if there is none. Padding is hidden.
        """
        allowed = masks.padding(target != self.transformer.config.special_ids[2])
        if cache is None:
            x = self.transformer.embed_target(target)
            allowed = masks.combine(allowed, masks.causal(target.shape[1]))
        else:
            x = self.transformer.embed_target(jnp.take(target, position[None], axis=1), position)
        scores, cache = self.decode(x, allowed, memory, masks.padding(valid), cache, position)
        if cache is None:
            return jnp.take(scores, position, axis=1), None
        return scores[:, 0], cache

    def decode(
        self,
        x: Array,
        allowed: Array,
        memory: Array,
        memory_allowed: Array,
        cache: list[LayerCache] | None,
        position: Array,
    ) -> tuple[Array, list[LayerCache] | None]:
        """Return the scores after each token of x (B, T, D), padding included, (B, T, V); and the new cache."""
        caches = None if cache is None else [KeyValueCache(*tensors, position) for tensors in cache]
        x = self.transformer.decoder(x, allowed, memory, memory_allowed, caches)
        (scores,) = self.transformer.heads(x, jnp.ones(x.shape[:2], jnp.bool_), None).values()
        if caches is None:
            return scores, None
        return scores, [(layer.keys, layer.values, layer.memory_keys, layer.memory_values) for layer in caches]

    def empty_cache(self, memory: Array, length: int) -> list[LayerCache]:
        """Return the cache before the first token: zeros for the target, and keys and values of the memory."""
        cache: list[LayerCache] = []
        for layer in self.transformer.decoder.layers:
            keys, values = layer.project_memory(memory)
            shapes = [(*x.shape[:2], length, x.shape[3]) for x in (keys, values)]
            zero_keys, zero_values = (jnp.zeros(shape, memory.dtype) for shape in shapes)
            cache.append((zero_keys, zero_values, keys, values))
        return cache
