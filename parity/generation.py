"""What ids an arm may generate: those that no rounding forbids.

Greedy decoding turns scores into ids, and where two tokens score alike, either is right. So the float64 reference reads
what the arm wrote, and each token has to be among the best that it would have gone on with.

Shapes: B batch, T target length, V target vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from triglot.impls.numpy_nn import permuted_contractions
from triglot.impls.numpy_reference import masks
from triglot.impls.numpy_reference.model import Model
from triglot.shared.arrays import Array, Bools
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import FrameworkError
from triglot.shared.inputs.validation import Batch

from .budgets import NOISE_RUNS, budget, noise_in
from .outputs import Parity, outputs_of

IDS = "ids"
GENERATED = "generated"  # how many tokens all batches of a generation got; no matter of right or wrong


class GenerationExpectation:
    """The truth of a cell that generates: for any ids (B, T), how far each is behind the best.

    Raises:
        FrameworkError: a score is infinite or no number in ``dtype``, or in float64.
    """

    def __init__(self, checkpoint: Checkpoint, batch: Batch, dtype: str) -> None:
        self._model = Model(checkpoint, dtype="float64")
        self._batch = batch
        self._start, self._end, self._pad = checkpoint.config.special_ids
        # As the arms are called: by the batch's own padding, where a random token may well be the pad id.
        ids = self._model.prepare("generation", batch)()
        self._shape = ids.shape
        # An arm finds its token the best. Its score and that of the true best may each be off by the budget of a score.
        self._budget = 2 * self._budget_of_a_score(checkpoint, ids, dtype)

    def judge(self, outputs: Mapping[str, Array]) -> Parity:
        """The id furthest behind the best one, by its row and place; or the first that is wrong whatever the scores."""
        rows, length = self._shape
        if set(outputs) != {IDS} or outputs[IDS].shape[1:] != (length,) or len(outputs[IDS]) < rows:
            return Parity(None, None, "diverged", IDS)
        ids = outputs[IDS][:rows]
        over = ended(ids, self._end)
        wrong = (ids < 0) | (ids >= self._model.config.target_vocabulary) | (over & (ids != self._pad))
        wrong[:, 0] |= ids[:, 0] != self._start
        behind = np.zeros(ids.shape)
        if not wrong.any():
            behind[:, 1:] = np.where(over[:, 1:], 0.0, self._behind(ids))
            wrong = ~np.isfinite(behind)
        if wrong.any():
            return Parity(None, None, "diverged", _place(wrong))
        error = float(behind.max())
        return Parity(error, self._budget, "pass" if error <= self._budget else "diverged", _place(behind == error))

    def _behind(self, ids: Array) -> Array:
        """How much less than the best each id but the first scores, after those before it: (B, T - 1)."""
        generator, batch = self._model.generator, self._batch
        memory = generator.transformer.encode(batch.source, batch.valid, batch.source, batch.source)
        allowed = masks.combine(masks.padding(ids != self._pad), masks.causal(ids.shape[1]))
        x = generator.transformer.embed_target(ids)
        # Unlike ``forward``, it scores what follows a pad token too, which a model may say before the end.
        scores, _ = generator.decode(x, allowed, memory, masks.padding(batch.valid), None, np.array(0))
        scores = scores[:, :-1]
        return scores.max(axis=2) - np.take_along_axis(scores, ids[:, 1:, None], axis=2)[:, :, 0]

    def _budget_of_a_score(self, checkpoint: Checkpoint, ids: Array, dtype: str) -> float:
        """How far the best score may be off. Others may be large, as where a bias forbids a token, and count nothing.

        Padding is not hidden here. That changes the scores, but not how far rounding moves them.
        """
        read = replace(self._batch, target=ids, target_valid=np.ones(ids.shape, np.bool_))
        (head,) = checkpoint.config.heads_on_top
        counted = ~ended(ids, self._end)
        exact = outputs_of(self._model, read)[head]
        place = exact.argmax(axis=2)[:, :, None]
        best = np.take_along_axis(exact, place, axis=2)[counted]
        noise = 0.0
        rounded = Model(checkpoint, dtype="float32")
        for seed in range(NOISE_RUNS):
            with permuted_contractions(seed):
                scores = outputs_of(rounded, read, dtype)[head]
            found = np.take_along_axis(scores, place, axis=2)[counted]
            noise = float(np.maximum(noise, np.abs(found - best).max()))
        if not np.isfinite(noise):
            raise FrameworkError(f"{head} are not finite in {dtype}, so nothing is right; take a wider dtype")
        return budget(noise_in(dtype, noise), float(np.abs(best).max()), dtype)


def ended(ids: Array, end_id: int) -> Bools:
    """Whether the model said the end before a place: (B, T). The first token is given, so it ends nothing."""
    ends = ids == end_id
    ends[:, 0] = False
    return np.cumsum(ends, axis=1) > ends


def _place(where: Bools) -> str:
    row, place = np.argwhere(where)[0]
    return f"{IDS}[{row}, {place}]"
