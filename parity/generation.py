"""The ids that an arm may generate: those that rounding allows.

Greedy decoding turns scores into ids, and where two tokens have similar scores, either is right. So the float64
reference reads the generated ids, and each of them has to be among the best continuations of those before it.

Shapes: B batch, T target length, V target vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from triglot.impls.numpy_reference import masks
from triglot.shared.arrays import Array, Bools
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import NotFiniteError
from triglot.shared.inputs import Batch, PairBatch

from .budgets import budget
from .judge import diverged, judge_error
from .output_names import IDS, is_after_end
from .report import Judgement
from .truth import Reference, measure_noise


class GenerationTruth:
    """The truth for generated ids (B, T): how far each id scores below the best one at its place.

    ``length``: T; None, or too long: the maximum of the model.

    Raises:
        NotFiniteError: a score is not finite in ``dtype``, or not even in float64.
    """

    def __init__(self, checkpoint: Checkpoint, batch: Batch, dtype: str, length: int | None = None) -> None:
        assert isinstance(batch, PairBatch)
        reference = Reference(checkpoint, dtype)
        self._model = reference.model
        self._batch = batch
        self._start, self._end, self._pad = checkpoint.config.special_ids
        # Called as the arms are: with the batch's own padding, because a random token may be the pad id.
        source, longest = (batch.source, batch.valid), checkpoint.config.target_max_length
        ids = self._model.backend.generator.generate(*source, min(length or longest, longest), cached=True)
        self._shape = ids.shape
        # An arm chooses the token that it scores highest. Its score of that token and its score of the true best may
        # each be off by the budget of a score.
        self._budget = 2 * self._budget_of_best_score(reference, ids, dtype)

    def judge(self, outputs: Mapping[str, Array]) -> Judgement:
        """Judge the id that scores furthest below the best, or the first id that no score could explain."""
        rows, length = self._shape
        if set(outputs) != {IDS} or outputs[IDS].shape[1:] != (length,) or len(outputs[IDS]) < rows:
            received = ", ".join(f"{name} {value.shape}" for name, value in outputs.items()) or "nothing"
            return diverged(IDS, f"the outputs are {received}; expected {IDS} {self._shape} and nothing else")
        ids = outputs[IDS][:rows]
        after_end = is_after_end(ids, self._end)
        wrong = (ids < 0) | (ids >= self._model.config.target_vocabulary) | (after_end & (ids != self._pad))
        wrong[:, 0] |= ids[:, 0] != self._start
        behind = np.zeros(ids.shape)
        if not wrong.any():
            behind[:, 1:] = np.where(after_end[:, 1:], 0.0, self._behind_best(ids))
            wrong = ~np.isfinite(behind)
        if wrong.any():
            return diverged(_place(wrong), "no correct decoding has this id at this place")
        error = float(behind.max())
        return judge_error(_place(behind == error), error, self._budget)

    def _behind_best(self, ids: Array) -> Array:
        """Return how far each id but the first scores below the best continuation of the ids before it: (B, T - 1)."""
        generator, batch = self._model.backend.generator, self._batch
        memory = generator.transformer.encode(batch.source, batch.valid)
        allowed = masks.combine(masks.padding(ids != self._pad), masks.causal(ids.shape[1]))
        x = generator.transformer.embed_target(ids)
        # Unlike ``forward``, this also scores what follows a pad token, which a model may generate before the end.
        scores, _ = generator.decode(x, allowed, memory, masks.padding(batch.valid), None, np.array(0))
        scores = scores[:, :-1]
        return scores.max(axis=2) - np.take_along_axis(scores, ids[:, 1:, None], axis=2)[:, :, 0]

    def _budget_of_best_score(self, reference: Reference, ids: Array, dtype: str) -> float:
        """Return how far the best score at each place may be off.

        Other scores do not count: they may be huge, for example where a bias bans a token. Padding is not hidden here,
        which changes the scores but not how far rounding moves them.
        """
        batch = replace(self._batch, target=ids, target_valid=np.ones(ids.shape, np.bool_))
        (head,) = self._model.config.heads_on_top
        counted = ~is_after_end(ids, self._end)
        scores = reference.outputs(batch)[head]
        likeliest = scores.argmax(axis=2)[:, :, None]
        best = np.take_along_axis(scores, likeliest, axis=2)[counted]

        def errors(seed: int) -> dict[str, float]:
            rounded = np.take_along_axis(reference.rounded_outputs(batch, seed)[head], likeliest, axis=2)[counted]
            return {head: float(np.abs(rounded - best).max())}

        noise = measure_noise([head], errors)[head]
        if not np.isfinite(noise):
            raise NotFiniteError(f"{head} are not finite in {dtype}, so nothing can be judged; use a wider dtype")
        return budget(noise, float(np.abs(best).max()), dtype)


def _place(where: Bools) -> str:
    row, place = np.argwhere(where)[0]
    return f"{IDS}[{row}, {place}]"
