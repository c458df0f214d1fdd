"""Greedy decoding: target tokens one after the other, the likeliest each time.

Shapes: B batch, S source length, T target length, H heads, V target vocabulary.
"""

from functools import partial

import jax
from flax import nnx
from jax import Array
from jax import numpy as jnp

from . import masks
from .decoder import Past
from .transformer import Transformer

# Of a layer: keys and values of the target so far, and those of the memory.
Kept = tuple[Array, Array, Array, Array]
Carry = tuple[Array, Array, Array, list[Kept] | None]


class Generator:
    """Decodes with a transformer; the source says which tokens are ``valid``, (B, S) both.

    ``cached`` keeps the keys and values of each token; without it, the decoder reads the whole target anew for each
    new token, as article 000 does.
    """

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer

    def generate(self, source: Array, valid: Array, length: int, cached: bool) -> Array:
        """Target ids (B, length): the start id, then what scores highest; after the end id, the pad id."""
        # The whole loop is compiled: step by step, JAX would take a hundred times as long.
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
        step_by_step = Generator(nnx.merge(graph, parameters))
        start_id, end_id, pad_id = step_by_step.transformer.config.special_ids
        memory = step_by_step.transformer.encode(source, valid, source, source)
        target = jnp.full((len(source), length), pad_id, jnp.int32)
        target = target.at[:, 0].set(start_id)
        finished = jnp.zeros(len(source), jnp.bool_)
        kept = step_by_step.no_past(memory, length) if cached else None

        def step(carry: Carry) -> Carry:
            place, target, finished, kept = carry
            if kept is None:
                scores = step_by_step.recompute_step(target, place, memory, valid)
            else:
                scores, kept = step_by_step.cached_step(target, place, memory, valid, kept)
            likeliest = scores.argmax(axis=-1)
            token = jnp.where(finished, pad_id, likeliest)
            target = target.at[:, place + 1].set(token)
            finished = finished | (token == end_id)
            return place + 1, target, finished, kept

        def goes_on(carry: Carry) -> Array:
            place, _, finished, _ = carry
            return (place < length - 1) & ~finished.all()

        _, target, _, _ = jax.lax.while_loop(goes_on, step, (jnp.asarray(0), target, finished, kept))
        return target

    def recompute_step(self, target: Array, place: Array, memory: Array, valid: Array) -> Array:
        """The scores of the token after ``place``, (B, V), from the whole target. Padding is hidden, as in training."""
        _, _, pad_id = self.transformer.config.special_ids
        allowed = masks.combine(masks.padding(target != pad_id), masks.causal(target.shape[1]))
        x = self.transformer.embed_target(target)
        x = self.transformer.decoder(x, allowed, memory, masks.padding(valid))
        return jnp.take(self.scores(x), place, axis=1)

    def cached_step(
        self, target: Array, place: Array, memory: Array, valid: Array, kept: list[Kept]
    ) -> tuple[Array, list[Kept]]:
        """The same from the token at ``place`` alone and what was kept of those before; and what to keep now."""
        _, _, pad_id = self.transformer.config.special_ids
        pasts = [Past(*arrays, place) for arrays in kept]
        x = self.transformer.embed_target(jnp.take(target, place[None], axis=1), place)
        x = self.transformer.decoder(x, masks.padding(target != pad_id), memory, masks.padding(valid), pasts)
        kept = [(past.keys, past.values, past.memory_keys, past.memory_values) for past in pasts]
        return self.scores(x)[:, 0], kept

    def no_past(self, memory: Array, length: int) -> list[Kept]:
        """What to keep of each layer before the first token: zeros for keys and values, and those of the memory."""
        found: list[Kept] = []
        for layer in self.transformer.decoder.layers:
            keys, values = layer.project_memory(memory)
            no_keys, no_values = (jnp.zeros((*x.shape[:2], length, x.shape[3]), x.dtype) for x in (keys, values))
            found.append((no_keys, no_values, keys, values))
        return found

    def scores(self, x: Array) -> Array:
        """The head's scores, (B, T, V), of every token, padding too."""
        (scores,) = self.transformer.heads(x, jnp.ones(x.shape[:2], jnp.bool_), None).values()
        return scores
