"""Probe values: inputs for every step of a model, made to expose the bugs that real activations hide.

In a deep model tokens grow alike, pre-activations stay small and variances stay large, so a wrong epsilon or an
approximate GELU hardly shows at the output. Each step therefore also runs alone, on values that replace its inputs:

``normal``        unit variance everywhere, and attention that is neither flat nor sharp
``low_variance``  vectors with deviations from 1 down to 1e-6, where epsilon decides the result; before a division by
                  their length, vectors that are shorter than its limit, and a vector of zeros
``large``         pre-activations and scores of up to a hundred, where a power overflows and a softmax saturates
``offset``        vectors with a mean of a thousand deviations, where a variance may cancel
``masking``       scores around the masking value, which show what that value is and whether it is added to the scores
                  or replaces them; without such a value, scores so low that a mask of -10,000 or -1e9 hides nothing;
                  in one row of the batch, every token is padding
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from triglot.shared.arrays import Array, as_received
from triglot.shared.inputs import Batch, random_batch
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import NamedValue, named_values

Kind = Literal["normal", "low_variance", "large", "offset", "masking"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_LARGE = 30.0
# Scores are normal numbers times the masking value, and the masking value may be added to them. Neither may overflow.
_LOWEST_MASKING = {"float32": -1e30, "float64": -1e30, "bfloat16": -1e30, "float16": -1e4}
_SMALLEST_EXPONENT = -6
# A thousand deviations. In 16 bits that would round a whole vector to a few numbers, and the rounding of the mean would
# decide its norm, so the mean is smaller there.
_OFFSETS = {"float32": 1000.0, "float64": 1000.0, "bfloat16": 16.0, "float16": 128.0}


def replacements(
    kind: Kind, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], seed: int, dtype: str
) -> dict[str, Array]:
    """Return an array for each named value, in its shape in ``shapes``, for a model that runs in ``dtype``."""
    generator = np.random.default_rng([seed, KINDS.index(kind)])
    drawn = {
        name: _draw(kind, config, named, shapes[name], generator, dtype) for name, named in named_values(config).items()
    }
    return {name: as_received(values, dtype) for name, values in drawn.items()}


def batch(kind: Kind, config: ModelConfig, lengths: Sequence[int], generator: np.random.Generator, dtype: str) -> Batch:
    """Return a batch for values of this kind.

    Embedded inputs are of the same kind. For "masking", the last row has no real token.
    """
    drawn = random_batch(config, lengths, generator)
    if not config.source_vocabulary:
        arrays = drawn.arrays()
        vectors = [name for name in ("key", "query", "value", "source", "target") if name in arrays]
        drawn = replace(
            drawn,
            **{name: as_received(_vectors(kind, arrays[name].shape, generator, dtype), dtype) for name in vectors},
        )
    if kind == "masking":
        valid = drawn.valid.copy()
        valid[-1] = False
        drawn = replace(drawn, valid=valid)
    return drawn


def _draw(
    kind: Kind,
    config: ModelConfig,
    named: NamedValue,
    shape: tuple[int, ...],
    generator: np.random.Generator,
    dtype: str,
) -> Array:
    if kind == "low_variance" and named.name == _normalized(config):
        return _short(_normal(shape, generator, dtype), dtype)
    if named.axes[-1] == "hidden":
        return _vectors(kind, shape, generator, dtype)
    drawn = _normal(shape, generator, dtype)
    if named.name.endswith(".weights"):
        weights = np.exp(drawn)
        return weights / weights.sum(axis=-1, keepdims=True)
    if kind == "large" and named.name.endswith((".scores", ".inner", ".transform")):
        return drawn * _LARGE
    if kind == "masking" and named.name.endswith(".scores"):
        if config.masking_value is not None:
            return _scores_around(max(config.masking_value, _LOWEST_MASKING[dtype]), drawn)
        drawn[:, :, 1::2] += _LOWEST_MASKING[dtype]  # excluded tokens must lose even to these scores
    return drawn


def _normalized(config: ModelConfig) -> str | None:
    """Return the name of the value that a sentence embedding scales to length 1; None if there is none."""
    if not config.sentence_normalized:
        return None
    last = f"dense.{len(config.sentence_layers) - 1}.activation" if config.sentence_layers else "pooled"
    return f"heads.sentence_embedding.{last}"


def _short(drawn: Array, dtype: str) -> Array:
    """Return vectors of length 1, at the limit of 1e-12, below it, and of zeros, in turns.

    Float16 cannot hold the short ones, which become zeros.
    """
    lengths = np.array([1.0, 1e-12, 1e-14, 0.0])[np.arange(len(drawn)) % 4]
    if dtype == "float16":
        lengths = np.where(lengths < 1, 0.0, lengths)
    unit = drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)
    return (unit * lengths[:, None]).astype(drawn.dtype)


def _scores_around(value: float, drawn: Array) -> Array:
    """Return scores (B, H, T, S) that compete with a masked score.

    The queries alternate. Half of them have scores as large as ``value``, which distinguishes adding from replacing. In
    the other half, the scores of the first half of the sources lie within about 1 of ``value``, and the rest around
    zero. Masked padding, at the end, then gets scores like those of allowed tokens, so every digit of ``value`` counts.
    """
    scores = drawn * abs(value)
    near = drawn.copy()
    near[..., : (drawn.shape[3] + 1) // 2] += value
    scores[:, :, 1::2] = near[:, :, 1::2]
    return scores


def _vectors(kind: Kind, shape: tuple[int, ...], generator: np.random.Generator, dtype: str) -> Array:
    drawn = _normal(shape, generator, dtype)
    if kind == "offset":
        return drawn + _OFFSETS[dtype]
    if kind == "low_variance":
        # The scale changes from token to token, so that every batch has every scale.
        rows = np.arange(drawn[..., 0].size).reshape(drawn.shape[:-1])
        exponents = rows % (1 - _SMALLEST_EXPONENT)
        return drawn * (10.0**-exponents)[..., None].astype(drawn.dtype)
    return drawn


def _normal(shape: tuple[int, ...], generator: np.random.Generator, dtype: str) -> Array:
    """Draw normal numbers, in float64 if ``dtype`` is.

    In float64, sums of float32 numbers of similar size are exact in almost every order. They would show no noise.
    """
    return generator.standard_normal(shape) if dtype == "float64" else generator.standard_normal(shape, np.float32)
