"""Fresh values for every step of a model, made for the bugs that real activations hide.

In a deep model tokens grow alike, pre-activations stay small and variances large: a wrong epsilon or an approximate
GELU hardly shows at the output. So each step is also run alone, on values put in place of its inputs:

``normal``        unit variance everywhere, and attention that is neither flat nor sharp;
``low_variance``  vectors with deviations from 1 down to 1e-6, where epsilon decides the result;
``large``         pre-activations and scores up to a hundred, where a power overflows and a softmax saturates;
``offset``        vectors with a mean a thousand times their deviation, where a variance may cancel;
``masking``       scores around the masking value, where it shows which value it is and whether it is added or put in
                  place, on a batch that has a row without any token to attend to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from triglot.shared.arrays import Array, Float32s
from triglot.shared.inputs.random import random_batch
from triglot.shared.inputs.validation import Batch
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.named_values import Activation, activations

Kind = Literal["normal", "low_variance", "large", "offset", "masking"]
KINDS: tuple[Kind, ...] = ("normal", "low_variance", "large", "offset", "masking")

_LARGE = 30.0
# The scores around a masking value, normal numbers times it, must not overflow, nor what is added to the least number.
_LOWEST_MASKING = {"float32": -1e30, "float64": -1e30, "bfloat16": -1e30, "float16": -1e4}
_SMALLEST_EXPONENT = -6
# A thousand deviations; 16 bits would round all of a vector to a few numbers there, and what its norm is then is
# decided by how the mean is rounded.
_OFFSETS = {"float32": 1000.0, "float64": 1000.0, "bfloat16": 16.0, "float16": 128.0}


def replacements(
    kind: Kind, config: ModelConfig, truth: Mapping[str, Array], seed: int, dtype: str
) -> dict[str, Float32s]:
    """A float32 array for each named value, of the shape that it has in ``truth``, for models that run in ``dtype``."""
    generator = np.random.default_rng([seed, KINDS.index(kind)])
    return {
        name: _fresh(kind, config, activation, truth[name].shape, generator, dtype)
        for name, activation in activations(config).items()
    }


def batch(kind: Kind, config: ModelConfig, lengths: Sequence[int], generator: np.random.Generator, dtype: str) -> Batch:
    """A batch to go with the values: embedded inputs are of that kind too; for masking, the last row has no token."""
    drawn = random_batch(config, lengths, generator)
    if not config.source_vocabulary:
        vectors = ("source", "query", "value") if config.kind == "attention" else ("source",)
        drawn = replace(
            drawn, **{name: _vectors(kind, getattr(drawn, name).shape, generator, dtype) for name in vectors}
        )
    if kind == "masking":
        valid = drawn.valid.copy()
        valid[-1] = False
        drawn = replace(drawn, valid=valid)
    return drawn


def _fresh(
    kind: Kind,
    config: ModelConfig,
    activation: Activation,
    shape: tuple[int, ...],
    generator: np.random.Generator,
    dtype: str,
) -> Float32s:
    if activation.axes[-1] == "hidden":
        return _vectors(kind, shape, generator, dtype)
    fresh = generator.standard_normal(shape, np.float32)
    if activation.name.endswith(".weights"):
        weights = np.exp(fresh)
        return weights / weights.sum(axis=-1, keepdims=True)
    if kind == "large" and activation.name.endswith((".scores", ".inner", ".transform")):
        return fresh * np.float32(_LARGE)
    if kind == "masking" and activation.name.endswith(".scores") and config.masking_value is not None:
        return _around(max(config.masking_value, _LOWEST_MASKING[dtype]), fresh)
    return fresh


def _around(value: float, fresh: Float32s) -> Float32s:
    """Scores (B, H, T, S) that a masked score competes with.

    Every other query has scores of the size of ``value``, which tells adding from replacing. The others have the first
    half of the sources at ``value``, give or take one, and the rest at zero: masked padding, at the end, comes to lie
    beside what is allowed, so that every digit of the value counts.
    """
    around = fresh * np.float32(abs(value))
    beside = fresh.copy()
    beside[..., : (fresh.shape[3] + 1) // 2] += np.float32(value)
    around[:, :, 1::2] = beside[:, :, 1::2]
    return around


def _vectors(kind: Kind, shape: tuple[int, ...], generator: np.random.Generator, dtype: str) -> Float32s:
    fresh = generator.standard_normal(shape, np.float32)
    if kind == "offset":
        return fresh + np.float32(_OFFSETS[dtype])
    if kind == "low_variance":
        # Neighbouring tokens differ in scale, so that every batch has every scale.
        rows = np.arange(fresh[..., 0].size).reshape(fresh.shape[:-1])
        exponents = rows % (1 - _SMALLEST_EXPONENT)
        return fresh * (10.0**-exponents)[..., None].astype(np.float32)
    return fresh
