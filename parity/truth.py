"""The truth: what the NumPy reference computes in float64, and the rounding noise of float32 around it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from triglot import impls
from triglot.impls.numpy_nn import permuted_contractions
from triglot.shared.arrays import HALVES, Array, Bools, representable
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import Batch
from triglot.shared.model.probe import Probe

from . import probes
from .budgets import NOISE_RUNS, noise_in
from .checks import Check, judged_tokens
from .output_names import name_outputs

# For a value, by its name and truth: where it is judged, as a mask that broadcasts to it. None: everywhere.
Selection = Callable[[str, Array], Bools | None]


@dataclass(frozen=True)
class Truth:
    """What a correct implementation returns: float64 values by name, and the noise of each in the dtype under test."""

    values: Mapping[str, Array]
    noise: Mapping[str, float]


class Reference:
    """The NumPy reference on one checkpoint, in float64 and in float32. ``dtype`` is the dtype under test."""

    def __init__(self, checkpoint: Checkpoint, dtype: str = "float32") -> None:
        self.model = impls.build(impls.REFERENCE, checkpoint, dtype="float64")
        self._rounded_model = impls.build(impls.REFERENCE, checkpoint, dtype="float32")
        self._config = checkpoint.config
        self._dtype = dtype

    def trace(self, batch: Batch, replacements: Mapping[str, Array]) -> dict[str, Array]:
        """Return every named value in float64."""
        with np.errstate(all="ignore"):  # an overflow is judged, not warned about
            return self.model.trace(batch, replacements)

    def rounded_trace(self, batch: Batch, replacements: Mapping[str, Array], seed: int) -> dict[str, Array]:
        """Return every named value in float32, with every sum in an order that ``seed`` decides.

        If the dtype under test has 16 bits, every named value is rounded to it before the computation continues.
        """
        with permuted_contractions(seed), np.errstate(all="ignore"):
            if self._dtype not in HALVES:
                return self._rounded_model.trace(batch, replacements)
            probe = rounding_probe(self._dtype, Probe)(replacements)
            self._rounded_model.run(batch, probe)
            return probe.record

    def outputs(self, batch: Batch) -> dict[str, Array]:
        """Return the outputs (see ``name_outputs``) in float64, without recording the values on the way."""
        with np.errstate(all="ignore"):
            return name_outputs(*self.model.run(batch, _Silent()))

    def rounded_outputs(self, batch: Batch, seed: int) -> dict[str, Array]:
        """Return the outputs in float32, with sums and roundings as in ``rounded_trace``."""
        probe = rounding_probe(self._dtype, _Silent)() if self._dtype in HALVES else _Silent()
        with permuted_contractions(seed), np.errstate(all="ignore"):
            return name_outputs(*self._rounded_model.run(batch, probe))

    def replacements(self, check: Check, seed: int) -> Mapping[str, Array]:
        """Return the float32 values that replace a model's own in a check; none where its own values flow."""
        if check.values is None:
            return {}
        truth = self.trace(check.batch, {})
        values = truth
        if check.values != "truth":
            values = probes.replacements(check.values, self._config, truth, seed, self._dtype)
        return {name: representable(value, self._dtype) for name, value in values.items()}

    def truth_of_check(self, check: Check, replaced: Mapping[str, Array]) -> Truth:
        """Return the truth and the noise of every named value of a check."""
        return self._with_noise(
            self.trace(check.batch, replaced),
            lambda seed: self.rounded_trace(check.batch, replaced, seed),
            lambda name, _: judged_tokens(name, check, self._config),
        )

    def truth_of_outputs(self, batch: Batch, selection: Selection) -> Truth:
        """Return the truth and the noise of the outputs."""
        return self._with_noise(self.outputs(batch), lambda seed: self.rounded_outputs(batch, seed), selection)

    def _with_noise(
        self, values: Mapping[str, Array], run: Callable[[int], Mapping[str, Array]], selection: Selection
    ) -> Truth:
        def errors(seed: int) -> dict[str, float]:
            return {
                name: distance(value, values[name], selection(name, values[name])) for name, value in run(seed).items()
            }

        return Truth(values, measure_noise(values, errors, self._dtype))


def measure_noise(
    names: Iterable[str], errors: Callable[[int], Mapping[str, float]], dtype: str = "float32"
) -> dict[str, float]:
    """Return the noise of ``dtype``: for each name the largest of the ``errors`` of ``NOISE_RUNS`` float32 runs.

    ``errors`` maps the number of a run to the error of each value. NaN if any error is NaN.
    """
    noise = dict.fromkeys(names, 0.0)
    for run in range(NOISE_RUNS):
        for name, error in errors(run).items():
            noise[name] = float(np.maximum(noise[name], error))  # unlike max, it returns NaN if either is
    return {name: noise_in(dtype, measured) for name, measured in noise.items()}


def distance(value: Array, truth: Array, selected: Bools | None = None) -> float:
    """Return the largest absolute difference over the selected entries; NaN if one of them is NaN."""
    with np.errstate(invalid="ignore"):  # the difference of two infinities is NaN, and that is what is returned
        difference = np.asarray(np.subtract(value, truth, dtype=np.float64))
    np.abs(difference, out=difference)
    return float(difference.max(initial=0.0, where=True if selected is None else selected))


def rounding_probe(dtype: str, base: type[Probe]) -> type[Probe]:
    """Return a subclass of ``base`` that rounds every value to ``dtype`` before the model continues with it."""

    class Rounding(base):
        def observe(self, name: str, value: Any) -> Any:
            return super().observe(name, representable(value, dtype))

    return Rounding


class _Silent(Probe):
    """A probe that records nothing: the values of a large batch would not fit into memory."""

    def observe(self, name: str, value: Any) -> Any:
        return value
