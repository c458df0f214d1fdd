"""The truth of a forward pass's outputs: the rule of the parity check, applied to what leaves the model.

The benchmark judges every arm by it before it times the arm. Values inside the model are not needed, so this also works
for implementations that are not ours, and for compiled programs.
"""

from collections.abc import Mapping

import numpy as np

from triglot.shared.arrays import Array, Bools
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import FrameworkError
from triglot.shared.inputs import Batch, PairBatch

from .budgets import budget
from .judge import diverged, judge_error
from .report import Judgement, worst
from .truth import Reference, distance


class ForwardTruth:
    """The outputs of a checkpoint on a batch in float64, and the noise around them.

    Raises:
        FrameworkError: an output is not finite in ``dtype``, or not even in float64.
    """

    def __init__(self, checkpoint: Checkpoint, batch: Batch, dtype: str) -> None:
        self._dtype = dtype
        self._rows = batch.rows
        self._valid = batch.target_valid if isinstance(batch, PairBatch) else batch.valid
        self._truth = Reference(checkpoint, dtype).truth_of_outputs(batch, self._select)
        if wrong := [name for name, noise in self._truth.noise.items() if not np.isfinite(noise)]:
            raise FrameworkError(f"{wrong[0]} is not finite in {dtype}, so nothing can be judged; use a wider dtype")

    def judge(self, outputs: Mapping[str, Array]) -> Judgement:
        """Return the worst judgement of ``outputs``. Rows beyond those of the batch are ignored."""
        judgements = [self._judge(name, value[: self._rows]) for name, value in outputs.items()]
        return worst(judgements) if judgements else diverged("", "there is no output")

    def _judge(self, name: str, value: Array) -> Judgement:
        true_value = self._truth.values.get(name)
        if true_value is None or value.shape != true_value.shape:
            return diverged(name, f"the reference has no {name} of shape {value.shape}")
        limit = budget(self._truth.noise[name], float(np.abs(true_value).max()), self._dtype)
        return judge_error(name, distance(value, true_value, self._select(name, value)), limit)

    def _select(self, _: str, value: Array) -> Bools | None:
        """Return where an output is judged: at real tokens, if it has a vector for each token."""
        per_token = value.ndim == 3 and value.shape[:2] == self._valid.shape
        return self._valid[:, :, None] if per_token else None
