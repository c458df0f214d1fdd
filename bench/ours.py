"""Triglot's own implementations, as an arm runs them."""

from collections.abc import Mapping, Sequence
from typing import Any

from .. import impls
from ..shared.arrays import Array
from ..shared.checkpoint import Checkpoint
from ..shared.inputs import Batch
from .arms import ARMS
from .cases import Case
from .expectations import IDS, named


class Ours:
    """The calls of one model on several batches, as one."""

    def __init__(self, checkpoint: Checkpoint, case: Case, batches: Sequence[Batch]) -> None:
        arm, cell = ARMS[case.arm], case.cell
        self.model = impls.build(arm.framework, checkpoint, device=cell.device, dtype=cell.dtype, mode=arm.mode)
        self.workload = cell.workload
        self.calls = [self.model.prepare(cell.workload, batch) for batch in batches]

    def call(self) -> list[Any]:
        """Compute every batch."""
        return [call() for call in self.calls]

    def outputs(self) -> Mapping[str, Array]:
        """What the first batch gives."""
        result = self.calls[0]()
        if self.workload == "generation":
            return {IDS: self.model.to_numpy(result)}
        output, heads = result
        return {name: self.model.to_numpy(value) for name, value in named(output, heads).items()}


prepare = Ours
