"""The truth: what the NumPy reference computes in float64, and the rounding noise around it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from triglot import impls
from triglot.impls.numpy_nn import permuted_contractions
from triglot.shared.arrays import HALVES, Array, Bools, as_received, representable
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import Batch
from triglot.shared.model.probe import Probe

from . import probes
from .budgets import CONFIRMING_RUNS, NOISE_RUNS, UNCONFIRMED_RUNS, UNIT_ROUNDOFF
from .checks import Check
from .output_names import name_outputs

Values = Mapping[str, Array]


@dataclass(frozen=True)
class Truth:
    """What a correct implementation returns: float64 values by name, and the noise of every entry of each.

    ``rounded(seed, moves)`` returns the values of one noise run, in which each value moves by up to its entry in
    ``moves``, if it has one. ``runs``: the number of runs that the noise was measured from.
    """

    values: Values
    noise: Values
    rounded: Callable[[int, Values], Values]
    runs: int = NOISE_RUNS

    def confirmed(self, runs: int, moves: Values) -> "Truth":
        """Return the same truth with noise from ``runs`` runs, to confirm a divergence.

        In every other run each value moves by up to its entry in ``moves``.
        """
        noise = {name: array.copy() for name, array in self.noise.items()}
        further = (self.rounded(seed, moves if seed % 2 else {}) for seed in range(self.runs, runs))
        _add_noise(noise, self.values, further)
        return replace(self, noise=noise, runs=runs)

    def with_noise(self, other: Values) -> "Truth":
        """Return the same truth, with the larger of its noise and another at every entry."""
        return replace(self, noise={name: np.maximum(array, other[name]) for name, array in self.noise.items()})

    def with_run(self, run: Values) -> "Truth":
        """Return the same truth, with the noise of one more run."""
        noise = {name: array.copy() for name, array in self.noise.items()}
        _add_noise(noise, self.values, [run])
        return replace(self, noise=noise)


class Reference:
    """The NumPy reference on one checkpoint, in float64 and in the number format of the noise.

    ``dtype`` is the dtype under test. The noise of float64 is measured in float64, that of any other dtype in float32.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: str = "float32") -> None:
        self.model = impls.build(impls.REFERENCE, checkpoint, dtype="float64")
        rounded = "float64" if dtype == "float64" else "float32"
        self._rounded_model = impls.build(impls.REFERENCE, checkpoint, dtype=rounded)
        self._config = checkpoint.config
        self._dtype = dtype
        self._shapes: dict[tuple[tuple[int, ...], ...], dict[str, tuple[int, ...]]] = {}  # of the values, by batch

    def trace(self, batch: Batch, replacements: Values) -> dict[str, Array]:
        """Return every named value in float64."""
        with np.errstate(all="ignore"):  # an overflow is judged, not warned about
            return self.model.trace(batch, replacements)

    def outputs(self, batch: Batch) -> dict[str, Array]:
        """Return the outputs (see ``name_outputs``) in float64, without recording the values on the way."""
        with np.errstate(all="ignore"):
            return name_outputs(*self.model.run(batch, _Silent()))

    def rounded_trace(
        self, batch: Batch, replacements: Values, seed: int, moves: Values, *, recomputes: bool = False
    ) -> dict[str, Array]:
        """Return every named value, rounded as a correct implementation may round it; ``seed`` decides how.

        Each value moves by up to its entry in ``moves``, if it has one. ``recomputes``: see ``_RecomputingProbe``.
        """
        probe = (_RecomputingProbe if recomputes else _RoundingProbe)(self._dtype, replacements, seed, moves)
        self._run_rounded(batch, probe, seed)
        return probe.record

    def rounded_outputs(self, batch: Batch, seed: int) -> dict[str, Array]:
        """Return the outputs, rounded as in ``rounded_trace``."""
        return name_outputs(*self._run_rounded(batch, _SilentRoundingProbe(self._dtype, {}, seed, {}), seed))

    def replacements(self, check: Check, seed: int) -> Values:
        """Return the values that replace a model's own in a check; empty if the model uses its own values."""
        if check.values is None:
            return {}
        sizes = tuple(array.shape for array in check.batch.arrays().values())
        if sizes not in self._shapes:
            self._shapes[sizes] = {name: value.shape for name, value in self.trace(check.batch, {}).items()}
        return probes.replacements(check.values, self._config, self._shapes[sizes], seed, self._dtype)

    def truth_of_values(self, batch: Batch, replaced: Values, runs: int = NOISE_RUNS) -> Truth:
        """Return the truth of every named value, and its noise from so many runs."""
        return _with_noise(
            self.trace(batch, replaced), lambda seed, moves: self.rounded_trace(batch, replaced, seed, moves), runs
        )

    def truth_of_steps(self, batch: Batch, given: Values, noise: Values) -> Truth:
        """Return what each step makes of the ``given`` values. ``noise``: that of each step alone."""
        return Truth(self.trace(batch, given), noise, lambda seed, moves: self.rounded_trace(batch, given, seed, moves))

    def noise_of_steps(self, batch: Batch, truth: Values) -> Values:
        """Return the noise of each step alone, on the true results of the steps before it."""
        given = {name: as_received(value, self._dtype) for name, value in truth.items()}
        return self.truth_of_values(batch, given).noise

    def noise_of_recomputed_steps(self, batch: Batch, truth: Values) -> Values:
        """Return the noise of each step if some of the values before it were computed again.

        A compiler may compute a value once to return it, and again for the step that reads it, and round the two
        differently. Measured on the true values, so that no bug of a framework becomes noise.
        """
        given = {name: as_received(value, self._dtype) for name, value in truth.items()}
        return _with_noise(
            self.trace(batch, given),
            lambda seed, moves: self.rounded_trace(batch, given, seed, moves, recomputes=True),
            CONFIRMING_RUNS[-1],
        ).noise

    def truth_of_outputs(self, batch: Batch) -> Truth:
        """Return the truth and the noise of the outputs."""
        return _with_noise(self.outputs(batch), lambda seed, _: self.rounded_outputs(batch, seed), UNCONFIRMED_RUNS)

    def _run_rounded(self, batch: Batch, probe: Probe, seed: int) -> tuple[Any, Any]:
        with permuted_contractions(seed, self._dtype), np.errstate(all="ignore"):
            return self._rounded_model.run(batch, probe)


def measure_noise(names: Iterable[str], errors: Callable[[int], Mapping[str, float]]) -> dict[str, float]:
    """Return the noise of whole values: for each name the largest of the ``errors`` of ``UNCONFIRMED_RUNS`` runs.

    ``errors`` maps the number of a run to the error of each value. NaN if any error is NaN.
    """
    noise = dict.fromkeys(names, 0.0)
    for run in range(UNCONFIRMED_RUNS):
        for name, error in errors(run).items():
            noise[name] = float(np.maximum(noise[name], error))  # unlike max, it returns NaN if either is
    return noise


def distances(value: Array, truth: Array) -> Array:
    """Return the absolute difference of every entry, in float64; NaN where a value is not finite."""
    with np.errstate(invalid="ignore"):  # the difference of two infinities is NaN, and that is what is returned
        difference = np.asarray(np.subtract(value, truth, dtype=np.float64))
    return np.abs(difference, out=difference)


def distance(value: Array, truth: Array, selected: Bools | None = None) -> float:
    """Return the largest absolute difference over the selected entries; NaN if one of them is NaN."""
    return float(distances(value, truth).max(initial=0.0, where=True if selected is None else selected))


def _with_noise(values: Values, rounded: Callable[[int, Values], Values], runs: int) -> Truth:
    noise = {name: np.zeros(value.shape) for name, value in values.items()}
    _add_noise(noise, values, (rounded(seed, {}) for seed in range(runs)))
    return Truth(values, noise, rounded, runs)


def _add_noise(noise: Values, values: Values, runs: Iterable[Values]) -> None:
    for run in runs:
        for name, value in run.items():
            np.maximum(noise[name], distances(value, values[name]), out=noise[name])


class _RoundingProbe(Probe):
    """Rounds every value to ``dtype`` before the model continues with it.

    Where a model's own values flow, each also moves, by ``moves`` or by one unit in the last place. Otherwise equal
    tokens would stay equal in every noise run, whereas the kernels of frameworks may round them differently.
    """

    def __init__(self, dtype: str, replacements: Values, seed: int, moves: Values) -> None:
        super().__init__(replacements)
        self._dtype = dtype
        self._moves = moves
        self._generator = None if replacements else np.random.default_rng([seed, 2])

    def observe(self, name: str, value: Array) -> Array:
        return super().observe(name, self._rounded(name, value))

    def _rounded(self, name: str, value: Array) -> Array:
        if self._generator is not None:
            move = self._moves.get(self._path + name)
            if move is None:
                move = np.abs(value) * value.dtype.type(2 * UNIT_ROUNDOFF[self._dtype])
            value = (value + move * self._generator.integers(-1, 2, value.shape, np.int8)).astype(value.dtype)
        return representable(value, self._dtype) if self._dtype in HALVES else value


class _RecomputingProbe(_RoundingProbe):
    """A rounding probe that ignores a random half of the replacements: there, the model continues with its own value.

    That value is not rounded to 16 bits, because compilers keep it in float32.
    """

    def __init__(self, dtype: str, replacements: Values, seed: int, moves: Values) -> None:
        super().__init__(dtype, replacements, seed, moves)
        self._choices = np.random.default_rng([seed, 3])

    def observe(self, name: str, value: Array) -> Array:
        replacement = super().observe(name, value)
        return value if self._choices.random() < 0.5 else replacement


class _SilentRoundingProbe(_RoundingProbe):
    """A rounding probe that records nothing: the values of a large batch would not fit into memory."""

    def observe(self, name: str, value: Array) -> Array:
        return self._rounded(name, value)


class _Silent(Probe):
    """A probe that records nothing."""

    def observe(self, name: str, value: Any) -> Any:
        return value
