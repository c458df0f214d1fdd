"""Triglot's arms with workload "embed", and what they share with peers."""

from collections.abc import Callable, Mapping, Sequence

from triglot.impls.text_encoder import TextEncoder
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint

from .arms import ARMS
from .cases import Case
from .texts import VECTORS, Texts


class TextArm:
    """An arm that turns texts into vectors with one function."""

    def __init__(self, encode: Callable[[list[str]], Array], parts: Sequence[Texts]) -> None:
        self.encode = encode
        self.use(parts)

    def use(self, parts: Sequence[Texts]) -> None:
        """Encode these texts from now on."""
        self.texts = [text for part in parts for text in part.texts]

    def call(self) -> Array:
        """Encode all texts."""
        return self.encode(self.texts)

    def wait(self, results: Array) -> None:
        """Do nothing: the vectors are finished."""

    def outputs(self, results: Array) -> Mapping[str, Array]:
        """Return the vectors."""
        return {VECTORS: results}


def triglot_encoder(checkpoint: Checkpoint, case: Case, parts: Sequence[Texts]) -> TextArm:
    """Build the encoder behind ``triglot.Embedder``."""
    arm, cell = ARMS[case.arm], case.cell
    encoder = TextEncoder(
        checkpoint, parts[0].tokenizer, arm.framework, mode=arm.mode, dtype=cell.dtype, device=cell.device
    )
    return TextArm(encoder.encode, parts)
