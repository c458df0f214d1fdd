"""Triglot's own implementations as arms."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from triglot import impls
from triglot.parity.generation import is_after_end
from triglot.parity.output_names import GENERATED, IDS, name_first_step, name_gradients, name_outputs
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import Batch

from .arms import ARMS, PLAN
from .cases import Case


class TriglotArm:
    """A model and its batches."""

    def __init__(self, checkpoint: Checkpoint, case: Case, batches: Sequence[Batch]) -> None:
        arm, cell = ARMS[case.arm], case.cell
        self.model = impls.build(arm.framework, checkpoint, device=cell.device, dtype=cell.dtype, mode=arm.mode)
        self.workload = cell.workload
        if cell.workload == "training":
            self.model.begin_training(PLAN)
        self.calls = [self.model.prepare(cell.workload, batch) for batch in batches]

    def call(self) -> list[Any]:
        """Compute every batch."""
        return [call() for call in self.calls]

    def wait(self, results: list[Any]) -> None:
        """Wait until the results are finished."""
        self.model.wait(results)

    def outputs(self, results: list[Any]) -> Mapping[str, Array]:
        """Return the results of the first batch, and the number of generated tokens in all batches."""
        if self.workload == "generation":
            ids = [self.model.to_numpy(target) for target in results]
            end_id = self.model.config.special_ids[1]
            return {IDS: ids[0], GENERATED: np.array(sum(count_generated(target, end_id) for target in ids))}
        if self.workload == "training":
            return name_first_step(results[0].loss, self.model.moments().first, self.model.weights())
        if self.workload == "forward+backward":
            loss, gradients = results[0]
            return name_gradients(float(loss), self.model.to_canonical(gradients))
        output, heads = results[0]
        return {name: self.model.to_numpy(value) for name, value in name_outputs(output, heads).items()}


def count_generated(ids: Array, end_id: int) -> int:
    """Return the number of generated tokens in targets (B, T): all but the first, up to the end of each."""
    return int((~is_after_end(ids, end_id))[:, 1:].sum())
