"""Greedy decoding: target tokens one after the other, the likeliest each time.

Shapes: B batch, S source length, T target length, H heads, V target vocabulary.
"""

import torch
from torch import Tensor

from . import masks
from .decoder import DecoderLayer, Past
from .transformer import Transformer

# Of a layer: keys and values of the target so far, and those of the memory.
Kept = tuple[Tensor, Tensor, Tensor, Tensor]


class Generator:
    """Decodes with a transformer; the source says which tokens are ``valid``, (B, S) both.

    ``cached`` keeps the keys and values of each token; without it, the decoder reads the whole target anew for each
    new token, as article 000 does.
    """

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer
        self.recompute, self.remember = self.recompute_step, self.cached_step

    def compile(self) -> None:
        """Compile both kinds of step; each is then traced once for every batch size and length."""
        self.recompute = torch.compile(self.recompute_step, fullgraph=True, dynamic=False)
        self.remember = torch.compile(self.cached_step, fullgraph=True, dynamic=False)

    def generate(self, source: Tensor, valid: Tensor, length: int, cached: bool) -> Tensor:
        """Target ids (B, length): the start id, then what scores highest; after the end id, the pad id."""
        start_id, end_id, pad_id = self.transformer.config.special_ids
        memory = self.transformer.encode(source, valid, source, source)
        target = torch.full((len(source), length), pad_id, device=source.device)
        target[:, 0] = start_id
        finished = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        kept = self.no_past(memory, length) if cached else None
        for place in range(length - 1):
            here = torch.tensor(place, device=source.device)
            if kept is None:
                scores = self.recompute(target, here, memory, valid)
            else:
                scores, kept = self.remember(target, here, memory, valid, kept)
            likeliest = scores.argmax(dim=-1)
            token = torch.where(finished, pad_id, likeliest)
            target[:, place + 1] = token
            finished = finished | (token == end_id)
            if finished.all():
                break
        return target

    def recompute_step(self, target: Tensor, place: Tensor, memory: Tensor, valid: Tensor) -> Tensor:
        """The scores of the token after ``place``, (B, V), from the whole target. Padding is hidden, as in training."""
        _, _, pad_id = self.transformer.config.special_ids
        allowed = masks.combine(masks.padding(target != pad_id), masks.causal(target.shape[1], target.device))
        x = self.transformer.embed_target(target)
        x = self.transformer.decoder(x, allowed, memory, masks.padding(valid))
        return torch.index_select(self.scores(x), 1, place[None])[:, 0]

    def cached_step(
        self, target: Tensor, place: Tensor, memory: Tensor, valid: Tensor, kept: list[Kept]
    ) -> tuple[Tensor, list[Kept]]:
        """The same from the token at ``place`` alone and what was kept of those before; and what to keep now."""
        _, _, pad_id = self.transformer.config.special_ids
        pasts = [Past(*arrays, place) for arrays in kept]
        x = self.transformer.embed_target(torch.index_select(target, 1, place[None]), place)
        x = self.transformer.decoder(x, masks.padding(target != pad_id), memory, masks.padding(valid), pasts)
        kept = [(past.keys, past.values, past.memory_keys, past.memory_values) for past in pasts]
        return self.scores(x)[:, 0], kept

    def no_past(self, memory: Tensor, length: int) -> list[Kept]:
        """What to keep of each layer before the first token: zeros for keys and values, and those of the memory."""
        found: list[Kept] = []
        for layer in self.transformer.decoder.layers:
            assert isinstance(layer, DecoderLayer)
            keys, values = layer.project_memory(memory)
            no_keys, no_values = (x.new_zeros(*x.shape[:2], length, x.shape[3]) for x in (keys, values))
            found.append((no_keys, no_values, keys, values))
        return found

    def scores(self, x: Tensor) -> Tensor:
        """The head's scores, (B, T, V), of every token, padding too."""
        (scores,) = self.transformer.heads(x, torch.ones(x.shape[:2], dtype=torch.bool, device=x.device), None).values()
        return scores
