"""The reference as the parity harness uses it (``shared.protocol.Reference``)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from triglot.impls.numpy_nn import permuted_contractions
from triglot.impls.numpy_reference.model import Model
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.dtypes import HALVES, representable
from triglot.shared.inputs.validation import Batch
from triglot.shared.model.probe import Probe


class Reference:
    """The same NumPy code in float64, the truth, and in float32, for the noise."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._exact = Model(checkpoint, dtype="float64")
        self._rounded = Model(checkpoint, dtype="float32")

    def truth(self, batch: Batch, replacements: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every named value in float64."""
        with np.errstate(all="ignore"):  # what overflows is judged, not warned of
            return self._exact.trace(batch, replacements)

    def rounded(
        self, batch: Batch, replacements: Mapping[str, np.ndarray], *, seed: int, dtype: str
    ) -> dict[str, np.ndarray]:
        """Every named value in float32, with every sum in an order that ``seed`` decides; see the protocol."""
        with permuted_contractions(seed), np.errstate(all="ignore"):
            if dtype not in HALVES:
                return self._rounded.trace(batch, replacements)
            probe = rounding_to(dtype)(replacements)
            self._rounded.run(batch, probe)
            return probe.record


def rounding_to(dtype: str, base: type[Probe] = Probe) -> type[Probe]:
    """A probe that rounds every value on its way; ``base``: what it does besides."""

    class Rounding(base):
        def observe(self, name: str, value: Any) -> Any:
            return super().observe(name, representable(value, dtype))

    return Rounding
