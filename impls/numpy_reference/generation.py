"""Greedy decoding: target tokens one after the other, the likeliest each time.

Shapes: B batch, S source length, T target length, D hidden size, H heads, V target vocabulary.
"""

import numpy as np
from numpy import ndarray

from . import masks
from .decoder import Past
from .transformer import Transformer

# Of a layer: keys and values of the target so far, and those of the memory.
Kept = tuple[ndarray, ndarray, ndarray, ndarray]


class Generator:
    """Decodes with a transformer; the source says which tokens are ``valid``, (B, S) both.

    ``cached`` keeps the keys and values of each token; without it, the decoder reads the whole target anew for each
    new token, as article 000 does.
    """

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer

    def generate(self, source: ndarray, valid: ndarray, length: int, cached: bool) -> ndarray:
        """Target ids (B, length): the start id, then what scores highest; after the end id, the pad id."""
        start_id, end_id, pad_id = self.transformer.config.special_ids
        memory = self.transformer.encode(source, valid)
        target = np.full((len(source), length), pad_id, np.int32)
        target[:, 0] = start_id
        finished = np.zeros(len(source), np.bool_)
        kept = self.nothing_kept(memory, length) if cached else None
        for place in range(length - 1):
            scores, kept = self.step(target, np.array(place), memory, valid, kept)
            likeliest = scores.argmax(axis=-1)
            token = np.where(finished, pad_id, likeliest)
            target[:, place + 1] = token
            finished = finished | (token == end_id)
            if finished.all():
                break
        return target

    def step(
        self, target: ndarray, place: ndarray, memory: ndarray, valid: ndarray, kept: list[Kept] | None
    ) -> tuple[ndarray, list[Kept] | None]:
        """The scores of the token after ``place``, (B, V), and what to keep. Padding is hidden, as in training.

        target: (B, T), padding after ``place``. memory: (B, S, D). kept: None if nothing is kept.
        """
        allowed = masks.padding(target != self.transformer.config.special_ids[2])
        if kept is None:
            x = self.transformer.embed_target(target)
            allowed = masks.combine(allowed, masks.causal(target.shape[1]))
        else:
            x = self.transformer.embed_target(np.take(target, place[None], axis=1), place)
        scores, kept = self.decode(x, allowed, memory, masks.padding(valid), kept, place)
        if kept is None:
            return np.take(scores, place[None], axis=1)[:, 0], None
        return scores[:, 0], kept

    def decode(
        self,
        x: ndarray,
        allowed: ndarray,
        memory: ndarray,
        memory_allowed: ndarray,
        kept: list[Kept] | None,
        place: ndarray,
    ) -> tuple[ndarray, list[Kept] | None]:
        """The scores after each token of x (B, T, D), padding too: (B, T, V); and what to keep."""
        pasts = None if kept is None else [Past(*tensors, place) for tensors in kept]
        x = self.transformer.decoder(x, allowed, memory, memory_allowed, pasts)
        (scores,) = self.transformer.heads(x, np.ones(x.shape[:2], np.bool_), None).values()
        if pasts is None:
            return scores, None
        return scores, [(past.keys, past.values, past.memory_keys, past.memory_values) for past in pasts]

    def nothing_kept(self, memory: ndarray, length: int) -> list[Kept]:
        """What is kept of each layer before the first token: zeros for keys and values, and those of the memory."""
        kept: list[Kept] = []
        for layer in self.transformer.decoder.layers:
            keys, values = layer.project_memory(memory)
            shapes = [(*x.shape[:2], length, x.shape[3]) for x in (keys, values)]
            no_keys, no_values = (np.zeros(shape, memory.dtype) for shape in shapes)
            kept.append((no_keys, no_values, keys, values))
        return kept
