"""The truth of a forward pass's outputs: the rule of the parity check, applied to what leaves the model.

The benchmark judges every arm by it before it times the arm. Values inside the model are not needed, so this also works
for implementations that are not ours, and for compiled programs.
"""

from collections.abc import Mapping

import numpy as np

from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import NotFiniteError
from triglot.shared.inputs import Batch, PairBatch
from triglot.shared.model.schema import named_values

from .judge import diverged, judge_error, mismatch
from .report import Judgement, worst
from .scopes import scopes_of, worst_share
from .truth import Reference, distances


class ForwardTruth:
    """The outputs of a checkpoint on a batch in float64, and the noise around them.

    Raises:
        NotFiniteError: an output is not finite in ``dtype``, or not even in float64.
    """

    def __init__(self, checkpoint: Checkpoint, batch: Batch, dtype: str) -> None:
        self._dtype = dtype
        self._rows = batch.rows
        self._valid = batch.target_valid if isinstance(batch, PairBatch) else batch.valid
        self._config = checkpoint.config
        self._named_values = named_values(checkpoint.config)
        self._truth = Reference(checkpoint, dtype).truth_of_outputs(batch)
        if wrong := [name for name, noise in self._truth.noise.items() if not np.isfinite(noise).all()]:
            raise NotFiniteError(f"{wrong[0]} is not finite in {dtype}, so nothing can be judged; use a wider dtype")

    def judge(self, outputs: Mapping[str, Array]) -> Judgement:
        """Return the worst judgement of ``outputs``. Rows beyond those of the batch are ignored."""
        judgements = [self._judge(name, value[: self._rows]) for name, value in outputs.items()]
        return worst(judgements) if judgements else diverged("", "there is no output")

    def _judge(self, name: str, value: Array) -> Judgement:
        true_value = self._truth.values.get(name)
        if true_value is None:
            return diverged(name, "the reference has no such value")
        if wrong := mismatch(value, true_value.shape):
            return diverged(name, wrong)
        # At real tokens, if the output has a vector for each token.
        per_token = value.ndim == 3 and value.shape[:2] == self._valid.shape
        selected = self._valid[:, :, None] if per_token else None
        error = distances(value, true_value)
        if not np.isfinite(error if selected is None else error[self._valid]).all():
            return diverged(name, "there is NaN or infinity among the values")
        named = self._named_values.get(name) or self._named_values.get(f"heads.{name}")
        scopes = scopes_of(named, self._config, self._dtype)
        share = worst_share(scopes, error, self._truth.noise[name], true_value, selected, self._dtype)
        return judge_error(name, share.error, share.budget, share.noise, share.where)
