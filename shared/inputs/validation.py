"""Checks on single input arrays. Every function raises InputError, which names the input, its value and the remedy.

Frameworks disagree on bad input: an id outside the vocabulary is an error in one, undefined in another and clamped in
the third. So inputs are refused here, in the same words for all.
"""

from typing import Any

import numpy as np

from triglot.shared.arrays import Array, Bools, Int32s
from triglot.shared.errors import InputError
from triglot.shared.model.config import ModelConfig


def describe(array: Array) -> str:
    """Return dtype and shape, as error messages show them."""
    return f"{array.dtype} {array.shape}"


def as_array(name: str, value: Any) -> Array:
    """Convert ``value`` to an array."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(f"{name} has rows of different lengths; pad them, and say which tokens are valid") from error
    except Exception as error:  # each framework has its own way to say that a tensor cannot become an array
        raise InputError(f"{name} is a {type(value).__name__} that NumPy cannot read; pass a NumPy array") from error


def check_valid(value: Any) -> Bools:
    """Return ``value`` as an array if it is a mask of real tokens, bool (B, S)."""
    valid = as_array("valid", value)
    return valid_mask("valid", valid, valid.shape if valid.ndim == 2 and valid.size else (1, 1))


def valid_mask(name: str, value: Any, shape: tuple[int, ...]) -> Bools:
    """Check a mask of real tokens."""
    valid = as_array(name, value)
    if valid.dtype != np.bool_ or valid.shape != shape:
        raise InputError(f"{name} is {describe(valid)}; expected bool {shape}, True for real tokens")
    return valid


def source_valid_mask(name: str, value: Any, shape: tuple[int, ...]) -> Bools:
    """Check the mask of real source tokens: every row needs one. None: all tokens are real."""
    valid = np.ones(shape, np.bool_) if value is None else valid_mask(name, value, shape)
    if not valid.any(axis=1).all():
        row = int(np.flatnonzero(~valid.any(axis=1))[0])
        raise InputError(f"row {row} of {name} has no real token; leave that row out")
    return valid


def source_tokens(config: ModelConfig, name: str, value: Any) -> Array:
    """Check the source: token ids (B, S), or vectors (B, S, D) for a model without a vocabulary."""
    source = as_array(name, value)
    if not source.size:
        raise InputError(f"the batch is empty, shape {source.shape}; give at least one row with one token")
    if config.source_vocabulary:
        if source.ndim != 2 or not np.issubdtype(source.dtype, np.integer):
            raise InputError(f"{name} is {describe(source)}; expected integers (B, S)")
    elif not is_vectors(source, config.hidden_size):
        raise InputError(
            f"the embedded input is {describe(source)}; expected float32 or float64 (B, S, {config.hidden_size}), "
            "because this model has no vocabulary"
        )
    if source.shape[1] > config.source_max_length:
        raise InputError(
            f"the length {source.shape[1]} is over the maximum {config.source_max_length} of the model; cut the input"
        )
    if config.source_vocabulary:
        return ids_in_range(name, source, config.source_vocabulary)
    return finite_vectors("the embedded input", source)


def ids_in_range(name: str, ids: Array, vocabulary: int) -> Int32s:
    """Check that ids are in the vocabulary. Return them as int32."""
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        raise InputError(
            f"{name} holds {low if low < 0 else high}; expected ids from 0 to {vocabulary - 1}, "
            "check that the tokenizer belongs to the model"
        )
    return ids.astype(np.int32)


def is_vectors(array: Array, size: int) -> bool:
    """Return whether the array is float32 or float64 of shape (B, N, size)."""
    return array.ndim == 3 and array.shape[2] == size and array.dtype.name in ("float32", "float64")


def finite_vectors(name: str, vectors: Array) -> Array:
    """Check that vectors are finite in float32. Return them in the byte order of this machine."""
    with np.errstate(over="ignore"):
        if not np.isfinite(vectors.astype(np.float32)).all():
            raise InputError(f"{name} is not finite in float32; expected finite numbers")
    return vectors.astype(vectors.dtype.newbyteorder("="), copy=False)
