"""The reference as the parity harness uses it (``shared.protocol.Reference``)."""

from collections.abc import Mapping

import numpy as np

from ..shared.checkpoint import Checkpoint
from ..shared.inputs import Batch
from .numpy_nn import permuted_contractions
from .numpy_reference.model import Model


class Reference:
    """The same NumPy code in float64, the truth, and in float32, for the noise."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._exact = Model(checkpoint, dtype="float64")
        self._rounded = Model(checkpoint, dtype="float32")

    def truth(self, batch: Batch, replacements: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every named value in float64."""
        with np.errstate(all="ignore"):  # what overflows is judged, not warned of
            return self._exact.trace(batch, replacements)

    def rounded(self, batch: Batch, replacements: Mapping[str, np.ndarray], *, seed: int) -> dict[str, np.ndarray]:
        """Every named value in float32, with every sum in an order that ``seed`` decides."""
        with permuted_contractions(seed), np.errstate(all="ignore"):
            return self._rounded.trace(batch, replacements)
