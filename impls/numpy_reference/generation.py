"""Greedy decoding: target tokens one after the other, the likeliest each time.

Shapes: B batch, S source length, T target length, H heads, V target vocabulary.
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
        self.recompute, self.remember = self.recompute_step, self.cached_step

    def generate(self, source: ndarray, valid: ndarray, length: int, cached: bool) -> ndarray:
        """Target ids (B, length): the start id, then what scores highest; after the end id, the pad id."""
        start_id, end_id, pad_id = self.transformer.config.special_ids
        memory = self.transformer.encode(source, valid, source, source)
        target = np.full((len(source), length), pad_id, np.int32)
        target[:, 0] = start_id
        finished = np.zeros(len(source), np.bool_)
        kept = self.no_past(memory, length) if cached else None
        for place in range(length - 1):
            here = np.array(place)
            if kept is None:
                scores = self.recompute(target, here, memory, valid)
            else:
                scores, kept = self.remember(target, here, memory, valid, kept)
            likeliest = scores.argmax(axis=-1)
            token = np.where(finished, pad_id, likeliest)
            target[:, place + 1] = token
            finished = finished | (token == end_id)
            if finished.all():
                break
        return target

    def recompute_step(self, target: ndarray, place: ndarray, memory: ndarray, valid: ndarray) -> ndarray:
        """The scores of the token after ``place``, (B, V), from the whole target. Padding is hidden, as in training."""
        _, _, pad_id = self.transformer.config.special_ids
        allowed = masks.combine(masks.padding(target != pad_id), masks.causal(target.shape[1]))
        x = self.transformer.embed_target(target)
        x = self.transformer.decoder(x, allowed, memory, masks.padding(valid))
        return np.take(self.scores(x), place[None], axis=1)[:, 0]

    def cached_step(
        self,
        target: ndarray,
        place: ndarray,
        memory: ndarray,
        valid: ndarray,
        kept: list[Kept],
    ) -> tuple[ndarray, list[Kept]]:
        """The same from the token at ``place`` alone and what was kept of those before; and what to keep now."""
        _, _, pad_id = self.transformer.config.special_ids
        pasts = [Past(*arrays, place) for arrays in kept]
        x = self.transformer.embed_target(np.take(target, place[None], axis=1), place)
        x = self.transformer.decoder(x, masks.padding(target != pad_id), memory, masks.padding(valid), pasts)
        kept = [(past.keys, past.values, past.memory_keys, past.memory_values) for past in pasts]
        return self.scores(x)[:, 0], kept

    def no_past(self, memory: ndarray, length: int) -> list[Kept]:
        """What to keep of each layer before the first token: zeros for keys and values, and those of the memory."""
        found: list[Kept] = []
        for layer in self.transformer.decoder.layers:
            keys, values = layer.project_memory(memory)
            no_keys, no_values = (np.zeros((*x.shape[:2], length, x.shape[3]), x.dtype) for x in (keys, values))
            found.append((no_keys, no_values, keys, values))
        return found

    def scores(self, x: ndarray) -> ndarray:
        """The head's scores, (B, T, V), of every token, padding too."""
        (scores,) = self.transformer.heads(x, np.ones(x.shape[:2], np.bool_), None).values()
        return scores
