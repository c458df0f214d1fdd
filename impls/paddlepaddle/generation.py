"""Greedy decoding: target tokens one by one, the likeliest each time.

Shapes: B batch, S source length, T target length, D hidden size, H heads, V target vocabulary.
"""

import paddle
from paddle import Tensor, nn

from . import masks
from .decoder import KeyValueCache
from .transformer import Transformer

# One layer's key-value cache: keys and values of the target so far, and those of the memory.
LayerCache = tuple[Tensor, Tensor, Tensor, Tensor]


class Generator(nn.Layer):
    """Decodes with a transformer. ``source`` and ``valid``: (B, S).

    ``cached``: use a key-value cache. Without it, the decoder reads the whole target again for each new token, as
    article 000 does.
    """

    def __init__(self, transformer: Transformer) -> None:
        super().__init__()
        self.transformer = transformer

    def compile(self) -> None:
        """Compile the decoder. It is traced once for each batch size and length."""
        self.decode = paddle.jit.to_static(self.decode, full_graph=True)

    def generate(self, source: Tensor, valid: Tensor, length: int, cached: bool) -> Tensor:
        """Return target ids (B, length): the start id, then the highest scores; pad ids after the end id."""
        start_id, end_id, pad_id = self.transformer.config.special_ids
        memory = self.transformer.encode(source, valid)
        target = paddle.full([len(source), length], pad_id, "int32")
        target[:, 0] = start_id
        finished = paddle.zeros([len(source)], dtype="bool")
        cache = self.empty_cache(memory, length) if cached else None
        for position in range(length - 1):
            scores, cache = self.step(target, paddle.to_tensor(position), memory, valid, cache)
            likeliest = scores.argmax(axis=-1, dtype="int32")
            token = paddle.where(finished, paddle.full([], pad_id, "int32"), likeliest)
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
            allowed = masks.combine(allowed, masks.causal(target.shape[1]))
        else:
            x = self.transformer.embed_target(paddle.index_select(target, position.reshape([1]), axis=1), position)
        scores, cache = self.decode(x, allowed, memory, masks.padding(valid), cache, position)
        if cache is None:
            return paddle.index_select(scores, position.reshape([1]), axis=1)[:, 0], None
        return scores[:, 0], cache

    @paddle.jit.not_to_static  # traced as it is; see ``execution.py``
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
        (scores,) = self.transformer.heads(x, paddle.ones(x.shape[:2], dtype="bool"), None).values()
        if caches is None:
            return scores, None
        return scores, [(layer.keys, layer.values, layer.memory_keys, layer.memory_values) for layer in caches]

    def empty_cache(self, memory: Tensor, length: int) -> list[LayerCache]:
        """Return the cache before the first token: zeros for the target, and keys and values of the memory."""
        cache: list[LayerCache] = []
        for layer in self.transformer.decoder.layers:
            keys, values = layer.project_memory(memory)
            shapes = [(*x.shape[:2], length, x.shape[3]) for x in (keys, values)]
            zero_keys, zero_values = (paddle.zeros(shape, dtype=memory.dtype) for shape in shapes)
            cache.append((zero_keys, zero_values, keys, values))
        return cache
