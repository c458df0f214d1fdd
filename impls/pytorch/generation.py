"""Greedy decoding: target tokens one by one, the likeliest each time.

Shapes: B batch, S source length, T target length, D hidden size, H heads, V target vocabulary.
"""

import torch
from torch import Tensor

from . import masks
from .decoder import DecoderLayer, KeyValueCache
from .transformer import Transformer

# One layer's key-value cache: keys and values of the target so far, and those of the memory.
LayerCache = tuple[Tensor, Tensor, Tensor, Tensor]


class Generator:
    """Decodes with a transformer. ``source`` and ``valid``: (B, S).

    ``cached``: use a key-value cache. Without it, the decoder reads the whole target again for each new token, as
    article 000 does.
    """

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer

    def compile(self) -> None:
        """Compile the decoder. It is traced once for each batch size and length."""
        self.decode = torch.compile(self.decode, fullgraph=True, dynamic=False)

    def generate(self, source: Tensor, valid: Tensor, length: int, cached: bool) -> Tensor:
        """Return target ids (B, length): the start id, then the highest scores; pad ids after the end id."""
        start_id, end_id, pad_id = self.transformer.config.special_ids
        memory = self.transformer.encode(source, valid)
        target = torch.full((len(source), length), pad_id, device=source.device)
        target[:, 0] = start_id
        finished = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        cache = self.empty_cache(memory, length) if cached else None
        for position in range(length - 1):
            scores, cache = self.step(target, torch.tensor(position, device=source.device), memory, valid, cache)
            likeliest = scores.argmax(dim=-1)
            token = torch.where(finished, pad_id, likeliest)
            target[:, position + 1] = token
            finished = finished | (token == end_id)
            if finished.all():
                break
        return target

    def step(
        self, target: Tensor, position: Tensor, memory: Tensor, valid: Tensor, cache: list[LayerCache] | None
    ) -> tuple[Tensor, list[LayerCache] | None]:
        """Return the scores of the token after ``position``, (B, V), and the new cache.

        target: (B, T), padding after ``position``. memory: (B, S, D). cache: None if there is none. Padding is hidden.
        """
        allowed = masks.padding(target != self.transformer.config.special_ids[2])
        if cache is None:
            x = self.transformer.embed_target(target)
            allowed = masks.combine(allowed, masks.causal(target.shape[1], target.device))
        else:
            x = self.transformer.embed_target(torch.index_select(target, 1, position[None]), position)
        scores, cache = self.decode(x, allowed, memory, masks.padding(valid), cache, position)
        if cache is None:
            return torch.index_select(scores, 1, position[None])[:, 0], None
        return scores[:, 0], cache

    def decode(
        self,
        x: Tensor,
        allowed: Tensor,
        memory: Tensor,
        memory_allowed: Tensor,
        cache: list[LayerCache] | None,
        position: Tensor,
    ) -> tuple[Tensor, list[LayerCache] | None]:
        """Return the scores after each token of x (B, T, D), padding included, (B, T, V); and the new cache."""
        caches = None if cache is None else [KeyValueCache(*tensors, position) for tensors in cache]
        x = self.transformer.decoder(x, allowed, memory, memory_allowed, caches)
        (scores,) = self.transformer.heads(x, torch.ones(x.shape[:2], dtype=torch.bool, device=x.device), None).values()
        if caches is None:
            return scores, None
        return scores, [(layer.keys, layer.values, layer.memory_keys, layer.memory_values) for layer in caches]

    def empty_cache(self, memory: Tensor, length: int) -> list[LayerCache]:
        """Return the cache before the first token: zeros for the target, and keys and values of the memory."""
        cache: list[LayerCache] = []
        for layer in self.transformer.decoder.layers:
            assert isinstance(layer, DecoderLayer)
            keys, values = layer.project_memory(memory)
            shapes = [(*x.shape[:2], length, x.shape[3]) for x in (keys, values)]
            zero_keys, zero_values = (memory.new_zeros(shape) for shape in shapes)
            cache.append((zero_keys, zero_values, keys, values))
        return cache
