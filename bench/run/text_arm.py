"""Triglot's arms with workload "embed": from texts to vectors."""

from collections.abc import Mapping, Sequence

from triglot.impls.text_encoder import TextEncoder
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint

from .arms import ARMS, SENTENCE_EMBEDDING
from .call_files import Texts
from .cases import Case


class TextArm:
    """A ``TextEncoder`` and its texts."""

    def __init__(self, checkpoint: Checkpoint, case: Case, calls: Sequence[Texts]) -> None:
        arm, cell = ARMS[case.arm], case.cell
        self.encoder = TextEncoder(
            checkpoint, calls[0].tokenizer, arm.framework, mode=arm.mode, dtype=cell.dtype, device=cell.device
        )
        self.use(calls)

    def use(self, calls: Sequence[Texts]) -> None:
        """Encode these texts from now on."""
        self.texts = [text for call in calls for text in call.texts]

    def call(self) -> Array:
        """Encode all texts."""
        return self.encoder.encode(self.texts)

    def wait(self, results: Array) -> None:
        """Do nothing: the vectors are finished."""

    def outputs(self, results: Array) -> Mapping[str, Array]:
        """Return the vectors."""
        return {SENTENCE_EMBEDDING: results}
