"""Fresh values for every step of a model, made for the bugs that real activations hide.

In a deep model tokens grow alike, pre-activations stay small and variances large: a wrong epsilon or an approximate
GELU hardly shows at the output. So each step is also run alone, on values put in place of its inputs:

``normal``        unit variance everywhere, and attention that is neither flat nor sharp;
``low_variance``  vectors with deviations from 1 down to 1e-6, where epsilon decides the result;
``large``         pre-activations and scores up to a hundred, where a power overflows and a softmax saturates.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from ..activations import Activation
from ..arrays import Array, Float32s

Kind = Literal["normal", "low_variance", "large"]
KINDS: tuple[Kind, ...] = ("normal", "low_variance", "large")

_LARGE = 30.0
_SMALLEST_EXPONENT = -6


def replacements(
    kind: Kind, values: Mapping[str, Activation], truth: Mapping[str, Array], seed: int
) -> dict[str, Float32s]:
    """A float32 array for each named value, of the shape that it has in ``truth``."""
    generator = np.random.default_rng([seed, KINDS.index(kind)])
    return {name: _fresh(kind, activation, truth[name].shape, generator) for name, activation in values.items()}


def _fresh(kind: Kind, activation: Activation, shape: tuple[int, ...], generator: np.random.Generator) -> Float32s:
    fresh = generator.standard_normal(shape, np.float32)
    if activation.name.endswith(".weights"):
        weights = np.exp(fresh)
        return weights / weights.sum(axis=-1, keepdims=True)
    if kind == "large" and activation.name.endswith((".scores", ".inner")):
        return fresh * np.float32(_LARGE)
    if kind == "low_variance" and activation.axes[-1] == "hidden":
        # Neighbouring tokens differ in scale, so that every batch has every scale.
        rows = np.arange(fresh[..., 0].size).reshape(fresh.shape[:-1])
        exponents = rows % (1 - _SMALLEST_EXPONENT)
        return fresh * (10.0**-exponents)[..., None].astype(np.float32)
    return fresh
