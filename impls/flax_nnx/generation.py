"""Greedy decoding: target tokens one after the other, the likeliest each time.

Shapes: B batch, S source length, T target length, D hidden size, H heads, V target vocabulary.
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
        generator = Generator(nnx.merge(graph, parameters))
        start_id, end_id, pad_id = generator.transformer.config.special_ids
        memory = generator.transformer.encode(source, valid)
        target = jnp.full((len(source), length), pad_id, jnp.int32)
        target = target.at[:, 0].set(start_id)
        finished = jnp.zeros(len(source), jnp.bool_)
        kept = generator.nothing_kept(memory, length) if cached else None

        def step(carry: Carry) -> Carry:
            place, target, finished, kept = carry
            scores, kept = generator.step(target, place, memory, valid, kept)
            likeliest = scores.argmax(axis=-1).astype(jnp.int32)
            token = jnp.where(finished, pad_id, likeliest)
            target = target.at[:, place + 1].set(token)
            finished = finished | (token == end_id)
            return place + 1, target, finished, kept

        def goes_on(carry: Carry) -> Array:
            place, _, finished, _ = carry
            return (place < length - 1) & ~finished.all()

        _, target, _, _ = jax.lax.while_loop(goes_on, step, (jnp.asarray(0), target, finished, kept))
        return target

    def step(
        self, target: Array, place: Array, memory: Array, valid: Array, kept: list[Kept] | None
    ) -> tuple[Array, list[Kept] | None]:
        """The scores of the token after ``place``, (B, V), and what to keep. Padding is hidden, as in training.

        target: (B, T), padding after ``place``. memory: (B, S, D). kept: None if nothing is kept.
        """
        allowed = masks.padding(target != self.transformer.config.special_ids[2])
        if kept is None:
            x = self.transformer.embed_target(target)
            allowed = masks.combine(allowed, masks.causal(target.shape[1]))
        else:
            x = self.transformer.embed_target(jnp.take(target, place[None], axis=1), place)
        scores, kept = self.decode(x, allowed, memory, masks.padding(valid), kept, place)
        if kept is None:
            return jnp.take(scores, place, axis=1), None
        return scores[:, 0], kept

    def decode(
        self,
        x: Array,
        allowed: Array,
        memory: Array,
        memory_allowed: Array,
        kept: list[Kept] | None,
        place: Array,
    ) -> tuple[Array, list[Kept] | None]:
        """The scores after each token of x (B, T, D), padding too: (B, T, V); and what to keep."""
        pasts = None if kept is None else [Past(*tensors, place) for tensors in kept]
        x = self.transformer.decoder(x, allowed, memory, memory_allowed, pasts)
        (scores,) = self.transformer.heads(x, jnp.ones(x.shape[:2], jnp.bool_), None).values()
        if pasts is None:
            return scores, None
        return scores, [(past.keys, past.values, past.memory_keys, past.memory_values) for past in pasts]

    def nothing_kept(self, memory: Array, length: int) -> list[Kept]:
        """What is kept of each layer before the first token: zeros for keys and values, and those of the memory."""
        kept: list[Kept] = []
        for layer in self.transformer.decoder.layers:
            keys, values = layer.project_memory(memory)
            shapes = [(*x.shape[:2], length, x.shape[3]) for x in (keys, values)]
            no_keys, no_values = (jnp.zeros(shape, memory.dtype) for shape in shapes)
            kept.append((no_keys, no_values, keys, values))
        return kept
