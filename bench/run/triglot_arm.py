"""Triglot's own implementations, as an arm runs them."""

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


class Ours:
    """The calls of one model on several batches, as one."""

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
        """Wait until they are there."""
        self.model.wait(results)

    def outputs(self, results: list[Any]) -> Mapping[str, Array]:
        """What a call returned, of the first batch."""
        if self.workload == "generation":
            ids = [self.model.to_numpy(target) for target in results]
            end_id = self.model.config.special_ids[1]
            return {IDS: ids[0], GENERATED: np.array(sum(said(target, end_id) for target in ids))}
        if self.workload == "training":
            return name_first_step(results[0].loss, self.model.moments().first, self.model.weights())
        if self.workload == "forward+backward":
            loss, gradients = results[0]
            return name_gradients(float(loss), self.model.to_canonical(gradients))
        output, heads = results[0]
        return {name: self.model.to_numpy(value) for name, value in name_outputs(output, heads).items()}


prepare = Ours


def said(ids: Array, end_id: int) -> int:
    """How many tokens of targets (B, T) the model said: all but the first, up to the end of each."""
    return int((~is_after_end(ids, end_id))[:, 1:].sum())
