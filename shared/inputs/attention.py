"""Batches for models that are a single attention layer."""

from typing import Any

import numpy as np

from triglot.shared.arrays import LARGEST_BFLOAT16, Array
from triglot.shared.errors import InputError
from triglot.shared.model.config import ModelConfig

from .batch import AttentionBatch
from .validation import as_array, describe, finite_vectors, is_vectors, valid_mask


def attention_batch(
    config: ModelConfig,
    query: Any,
    key: Any,
    value: Any,
    allowed: Any = None,
    key_valid: Any = None,
    bias: Any = None,
    batch_first: bool = True,
) -> AttentionBatch:
    """Check the inputs of ``Model.attend``. By default every key may be attended to, and the bias is zero.

    A bias of minus infinity forbids, as ``allowed`` does. What is left of the bias is finite in every format: float32's
    lowest number, a common way to forbid, would become minus infinity in bfloat16.

    Raises:
        InputError: an input does not fit the model, or the model is more than attention.
    """
    if config.kind != "attention":
        raise InputError(f"this model is an {config.kind}, not attention alone; use encode, heads or forward")
    vectors = [_vectors(config, name, part) for name, part in (("query", query), ("key", key), ("value", value))]
    if not batch_first:
        vectors = [np.ascontiguousarray(part.swapaxes(0, 1)) for part in vectors]
    queries, keys, values = vectors
    (rows, targets), sources = queries.shape[:2], keys.shape[1]
    if values.shape != keys.shape or len(keys) != rows:
        raise InputError(
            f"query, key and value are {queries.shape}, {keys.shape} and {values.shape}, batch first; expected as many "
            "rows in each, and keys as long as values"
        )
    for name, length, maximum in (
        ("key", sources, config.source_max_length),
        ("query", targets, config.target_max_length),
    ):
        if length > maximum:
            raise InputError(f"the {name} length {length} is over the maximum {maximum} of the model; cut it")
    valid = (
        np.ones(keys.shape[:2], np.bool_) if key_valid is None else valid_mask("key_valid", key_valid, keys.shape[:2])
    )
    shape = (rows, config.heads, targets, sources)
    permission = _mask("allowed", np.ones((targets, sources), np.bool_) if allowed is None else allowed, shape)
    if permission.dtype != np.bool_:
        raise InputError(f"allowed is {describe(permission)}; expected bool, True = may attend")
    addend = _mask("bias", np.zeros((targets, sources), np.float32) if bias is None else bias, shape)
    if addend.dtype.name not in ("float32", "float64") or not (np.isfinite(addend) | np.isneginf(addend)).all():
        raise InputError(f"bias is {describe(addend)}; expected float32 or float64, finite or minus infinity")
    if np.isneginf(addend).any():
        permission = permission & np.isfinite(addend)
        addend = np.where(np.isfinite(addend), addend, np.zeros_like(addend))
    addend = np.clip(addend, -LARGEST_BFLOAT16, LARGEST_BFLOAT16)
    return AttentionBatch(
        config=config, query=queries, key=keys, value=values, valid=valid, allowed=permission, bias=addend
    )


def _vectors(config: ModelConfig, name: str, value: Any) -> Array:
    vectors = as_array(name, value)
    if not is_vectors(vectors, config.hidden_size):
        raise InputError(
            f"{name} is {describe(vectors)}; expected float32 or float64 (B, T, {config.hidden_size}), or with the "
            "length first and batch_first=False"
        )
    if not vectors.size:
        raise InputError(f"{name} is empty, shape {vectors.shape}; give at least one row with one vector")
    return finite_vectors(name, vectors)


def _mask(name: str, value: Any, shape: tuple[int, int, int, int]) -> Array:
    """Return a mask of shape (B or 1, H or 1, T, S).

    It may also come as (T, S) or as (B * H, T, S), the heads of a row next to each other, as in article 004.
    """
    mask = as_array(name, value)
    rows, heads, targets, sources = shape
    if mask.shape == (targets, sources):
        return mask[None, None]
    if mask.shape == (rows * heads, targets, sources):
        return mask.reshape(shape)
    if (
        mask.ndim == 4
        and mask.shape[2:] == (targets, sources)
        and all(size in (1, whole) for size, whole in zip(mask.shape[:2], shape[:2], strict=True))
    ):
        return mask
    raise InputError(
        f"{name} is {describe(mask)}; expected {(targets, sources)}, {(rows * heads, targets, sources)}, or "
        f"{shape}, the first two sizes of which may be 1"
    )
