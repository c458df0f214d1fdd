"""Greedy decoding: target tokens one after the other, the likeliest each time.

Shapes: B batch, S source length, T target length, D hidden size, H heads, V target vocabulary.
"""

import paddle
from paddle import Tensor, nn

from . import masks
from .decoder import Past
from .transformer import Transformer

# Of a layer: keys and values of the target so far, and those of the memory.
Kept = tuple[Tensor, Tensor, Tensor, Tensor]


class Generator(nn.Layer):
    """Decodes with a transformer; the source says which tokens are ``valid``, (B, S) both.

    ``cached`` keeps the keys and values of each token; without it, the decoder reads the whole target anew for each
    new token, as article 000 does.
    """

    def __init__(self, transformer: Transformer) -> None:
        super().__init__()
        self.transformer = transformer

    def compile(self) -> None:
        """Compile what reads the embedded target; it is then traced once for every batch size and length."""
        self.decode = paddle.jit.to_static(self.decode, full_graph=True)

    def generate(self, source: Tensor, valid: Tensor, length: int, cached: bool) -> Tensor:
        """Target ids (B, length): the start id, then what scores highest; after the end id, the pad id."""
        start_id, end_id, pad_id = self.transformer.config.special_ids
        memory = self.transformer.encode(source, valid)
        target = paddle.full([len(source), length], pad_id, "int32")
        target[:, 0] = start_id
        finished = paddle.zeros([len(source)], dtype="bool")
        kept = self.nothing_kept(memory, length) if cached else None
        for place in range(length - 1):
            scores, kept = self.step(target, paddle.to_tensor(place), memory, valid, kept)
            likeliest = scores.argmax(axis=-1, dtype="int32")
            token = paddle.where(finished, paddle.full([], pad_id, "int32"), likeliest)
            target[:, place + 1] = token
            finished = finished | (token == end_id)
            if finished.all():
                break
        return target

    def step(
        self, target: Tensor, place: Tensor, memory: Tensor, valid: Tensor, kept: list[Kept] | None
    ) -> tuple[Tensor, list[Kept] | None]:
        """The scores of the token after ``place``, (B, V), and what to keep. Padding is hidden, as in training.

        target: (B, T), padding after ``place``. memory: (B, S, D). kept: None if nothing is kept.
        """
        allowed = masks.padding(target != self.transformer.config.special_ids[2])
        if kept is None:
            x = self.transformer.embed_target(target)
            allowed = masks.combine(allowed, masks.causal(target.shape[1]))
        else:
            x = self.transformer.embed_target(paddle.index_select(target, place.reshape([1]), axis=1), place)
        scores, kept = self.decode(x, allowed, memory, masks.padding(valid), kept, place)
        if kept is None:
            return paddle.index_select(scores, place.reshape([1]), axis=1)[:, 0], None
        return scores[:, 0], kept

    def decode(
        self,
        x: Tensor,
        allowed: Tensor,
        memory: Tensor,
        memory_allowed: Tensor,
        kept: list[Kept] | None,
        place: Tensor,
    ) -> tuple[Tensor, list[Kept] | None]:
        """The scores after each token of x (B, T, D), padding too: (B, T, V); and what to keep."""
        pasts = None if kept is None else [Past(*tensors, place) for tensors in kept]
        x = self.transformer.decoder(x, allowed, memory, memory_allowed, pasts)
        (scores,) = self.transformer.heads(x, paddle.ones(x.shape[:2], dtype="bool"), None).values()
        if pasts is None:
            return scores, None
        return scores, [(past.keys, past.values, past.memory_keys, past.memory_values) for past in pasts]

    def nothing_kept(self, memory: Tensor, length: int) -> list[Kept]:
        """What is kept of each layer before the first token: zeros for keys and values, and those of the memory."""
        kept: list[Kept] = []
        for layer in self.transformer.decoder.layers:
            keys, values = layer.project_memory(memory)
            shapes = [(*x.shape[:2], length, x.shape[3]) for x in (keys, values)]
            no_keys, no_values = (paddle.zeros(shape, dtype=memory.dtype) for shape in shapes)
            kept.append((no_keys, no_values, keys, values))
        return kept
