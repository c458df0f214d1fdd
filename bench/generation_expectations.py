"""What ids an arm may generate: those that no rounding forbids.

Greedy decoding turns scores into ids, and where two tokens score alike, either is right. So the float64 reference reads
what the arm wrote, and each token has to be among the best that it would have gone on with.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..impls.numpy_reference import masks
from ..impls.numpy_reference.model import Model
from ..shared.arrays import Array, Bools
from ..shared.checkpoint import Checkpoint
from ..shared.inputs import Batch
from .expectations import Expectation, Parity

IDS = "ids"
GENERATED = "generated"  # how many tokens all batches of a generation got; no matter of right or wrong


class GenerationExpectation:
    """The truth of a cell that generates: for any ids, how far each is behind the best."""

    def __init__(self, checkpoint: Checkpoint, batch: Batch, dtype: str) -> None:
        self._model = Model(checkpoint, dtype="float64")
        self._batch = batch
        self._start, self._end, self._pad = checkpoint.config.special_ids
        # As the arms are called: by the batch's own padding, where a random token may well be the pad id.
        ids = self._model.prepare("generation", batch)()
        self._shape = ids.shape
        (name,) = checkpoint.config.heads_on_top
        read = replace(batch, target=ids, target_valid=ids != self._pad)
        # An arm finds its token the best. Its score and that of the true best may each be off by the budget of a score.
        self._budget = 2 * Expectation(checkpoint, read, dtype).budget(name)

    def judge(self, outputs: Mapping[str, Array]) -> Parity:
        """The id furthest behind the best one, by its row and place; or the first that is wrong whatever the scores."""
        rows, length = self._shape
        if set(outputs) != {IDS} or outputs[IDS].shape[1:] != (length,) or len(outputs[IDS]) < rows:
            return Parity(None, None, "diverged", IDS)
        ids = outputs[IDS][:rows]
        ended = _ended(ids, self._end)
        known = (ids >= 0) & (ids < self._model.config.target_vocabulary)
        wrong = ~known | (ended & (ids != self._pad))
        wrong[:, 0] |= ids[:, 0] != self._start
        if wrong.any():
            return Parity(None, None, "diverged", _place(wrong))
        behind = np.where(ended[:, 1:], 0.0, self._behind(ids))
        error = float(behind.max(initial=0.0))
        place = _place(np.pad(behind == error, ((0, 0), (1, 0))))
        return Parity(error, self._budget, "pass" if error <= self._budget else "diverged", place)

    def _behind(self, ids: Array) -> Array:
        """How much less than the best each id but the first scores, after those before it: (B, T - 1)."""
        generator, batch = self._model.generator, self._batch
        memory = generator.transformer.encode(batch.source, batch.valid, batch.source, batch.source)
        allowed = masks.combine(masks.padding(ids != self._pad), masks.causal(ids.shape[1]))
        x = generator.transformer.embed_target(ids)
        # Unlike ``forward``, it scores what follows a pad token too, which a model may say before the end.
        scores, _ = generator.decode(x, allowed, memory, masks.padding(batch.valid), None, np.array(0))
        scores = scores[:, :-1]
        chosen = np.take_along_axis(scores, ids[:, 1:, None], axis=2)[:, :, 0]
        return scores.max(axis=2) - chosen


def _ended(ids: Array, end_id: int) -> Bools:
    """Whether there is an end before a place."""
    ends = ids == end_id
    return np.cumsum(ends, axis=1) > ends


def _place(where: Bools) -> str:
    row, place = np.argwhere(where)[0]
    return f"{IDS}[{row}, {place}]"
