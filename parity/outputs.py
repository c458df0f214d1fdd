"""What an arm has to compute before it is timed: a wrong answer has no speed.

The rule is that of ``triglot parity`` (``parity/budgets.py``), on the outputs alone, and of a large batch on its
first rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from triglot.impls.numpy_nn import permuted_contractions
from triglot.impls.numpy_reference.model import Model
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.dtypes import HALVES
from triglot.shared.errors import FrameworkError
from triglot.shared.inputs.validation import Batch
from triglot.shared.model.probe import Probe

from .budgets import NOISE_RUNS, budget, noise_in
from .truth import rounding_to


@dataclass(frozen=True)
class Parity:
    """How far the worst output is from the truth, what is accepted, and whether it passes."""

    error: float | None
    budget: float | None
    verdict: str
    name: str = ""

    def complaint(self) -> str:
        """What is wrong, in words."""
        how = "" if self.error is None else f": off by {self.error:.2g}, where {self.budget:.2g} is rounding"
        return f"{self.name} is not what the reference computes{how}"

    def to_dict(self) -> dict[str, float | str | None]:
        """As plain JSON types."""
        return {"error": self.error, "budget": self.budget, "verdict": self.verdict, "name": self.name}


def worst(judged: Mapping[str, tuple[float, float] | None]) -> Parity:
    """The verdict on outputs by name: that on the one which uses up most of its budget, from error and budget of each.

    None in their place: nothing of that name, or of that shape, was expected.
    """
    found = Parity(None, None, "diverged")
    most = -1.0
    for name, errors in judged.items():
        if errors is None:
            return Parity(None, None, "diverged", name)
        error, allowed = errors
        finite = bool(np.isfinite(error))
        strain = (error / allowed if allowed else float(error > 0)) if finite else float("inf")
        if strain > most:
            verdict = "pass" if finite and error <= allowed else "diverged"
            most, found = strain, Parity(error if finite else None, allowed, verdict, name)
    return found


class Expectation:
    """The truth of a cell: its outputs in float64, the noise around them, and which rows they are of.

    Raises:
        FrameworkError: an output is infinite or no number in ``dtype``, or in float64.
    """

    def __init__(self, checkpoint: Checkpoint, batch: Batch, dtype: str) -> None:
        self._dtype = dtype
        self._rows = len(batch.valid)
        self._real = batch.target_valid if checkpoint.config.kind == "encoder_decoder" else batch.valid
        self._truth = outputs_of(Model(checkpoint, dtype="float64"), batch)
        rounded = Model(checkpoint, dtype="float32")
        self._noise = dict.fromkeys(self._truth, 0.0)
        for seed in range(NOISE_RUNS):
            with permuted_contractions(seed):
                found = outputs_of(rounded, batch, dtype)
            for name, value in found.items():
                self._noise[name] = float(np.maximum(self._noise[name], self._distance(name, value)))
        if wrong := [name for name, noise in self._noise.items() if not np.isfinite(noise)]:
            raise FrameworkError(f"{wrong[0]} is not finite in {dtype}, so nothing is right; take a wider dtype")

    def judge(self, outputs: Mapping[str, Array]) -> Parity:
        """The worst of ``outputs`` by the share of its budget that it uses up."""
        return worst({name: self._errors(name, value[: self._rows]) for name, value in outputs.items()})

    def _errors(self, name: str, value: Array) -> tuple[float, float] | None:
        """The error of an output, and its budget."""
        if name not in self._truth or value.shape != self._truth[name].shape:
            return None
        magnitude = float(np.abs(self._truth[name]).max())
        return self._distance(name, value), budget(noise_in(self._dtype, self._noise[name]), magnitude, self._dtype)

    def _distance(self, name: str, value: Array) -> float:
        difference = np.abs(np.asarray(value, np.float64) - self._truth[name])
        per_token = difference.ndim == 3 and difference.shape[:2] == self._real.shape
        selected = self._real[:, :, None] if per_token else np.ones((), np.bool_)
        return float(difference.max(initial=0.0, where=np.broadcast_to(selected, difference.shape)))


class _Unrecorded(Probe):
    """Keeps no value: all those of a large batch would not fit into memory."""

    def observe(self, name: str, value: Array) -> Array:
        return value


def named(output: Any, heads: Any) -> dict[str, Any]:
    """What leaves a model, by name: its output and its heads, or its averaged weights, if it is attention alone."""
    return {"output": output, **(cast("dict[str, Any]", heads) if isinstance(heads, dict) else {"averaged": heads})}


def outputs_of(model: Model, batch: Batch, dtype: str = "float64") -> dict[str, Array]:
    """What the reference computes, by name; in 16 bits, with every value rounded to ``dtype`` on its way."""
    probe = rounding_to(dtype, _Unrecorded)() if dtype in HALVES else _Unrecorded()
    with np.errstate(all="ignore"):  # what overflows is said
        output, heads = model.run(batch, probe)
    return named(output, heads)
