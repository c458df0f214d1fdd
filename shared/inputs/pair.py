"""Batches for encoder-decoders: a source, and the target that the decoder reads."""

from typing import Any

import numpy as np

from triglot.shared.arrays import Array
from triglot.shared.errors import InputError
from triglot.shared.model.config import ModelConfig

from .batch import PairBatch
from .validation import (
    as_array,
    describe,
    finite_vectors,
    ids_in_range,
    is_vectors,
    source_tokens,
    source_valid_mask,
    valid_mask,
)

_LARGEST_HIDING_VALUE = -1000.0  # exp(-1000) is zero in every format, next to the scores of any trained model


def pair_batch(
    config: ModelConfig, source_ids: Any, target_ids: Any, source_valid: Any = None, target_valid: Any = None
) -> PairBatch:
    """Check the inputs of ``Model.forward``. By default every token is real that is not the pad id.

    Raises:
        InputError: an input does not fit the model, or the model has no decoder.
    """
    _check_decoder(config)
    source = source_tokens(config, "source_ids", source_ids)
    valid = source_valid_mask("source_valid", _or_unpadded(config, source, source_valid), source.shape[:2])
    target = _target_tokens(config, target_ids, len(source))
    return PairBatch(
        config=config,
        source=source,
        valid=valid,
        target=target,
        target_valid=valid_mask("target_valid", _or_unpadded(config, target, target_valid), target.shape[:2]),
    )


def _target_tokens(config: ModelConfig, value: Any, rows: int) -> Array:
    """Check the target: token ids (B, T), or vectors (B, T, D) for a model without vocabularies."""
    target = as_array("target_ids", value)
    if config.target_vocabulary:
        fits, expected = target.ndim == 2 and np.issubdtype(target.dtype, np.integer), f"integers ({rows}, T)"
    else:
        fits, expected = is_vectors(target, config.hidden_size), f"float32 or float64 ({rows}, T, {config.hidden_size})"
    if not fits or len(target) != rows or not target.size:
        raise InputError(f"target_ids is {describe(target)}; expected {expected}")
    if target.shape[1] > config.target_max_length:
        raise InputError(
            f"the target length {target.shape[1]} is over the maximum {config.target_max_length} of the model; cut it"
        )
    if config.target_vocabulary:
        return ids_in_range("target_ids", target, config.target_vocabulary)
    return finite_vectors("target_ids", target)


def sources_to_generate_from(batch: PairBatch) -> Array:
    """Return the sources with another id where a real token is the pad id: generation recognises padding by its id."""
    pad_id = batch.config.pad_id
    return np.where(batch.valid & (batch.source == pad_id), 0 if pad_id else 1, batch.source).astype(batch.source.dtype)


def generation_batch(config: ModelConfig, source_ids: Any, max_length: int | None = None) -> tuple[PairBatch, int]:
    """Check the inputs of ``Model.generate``. Return the batch, its target one start id, and the target length.

    Raises:
        InputError: see ``pair_batch``; or the model cannot have a target of ``max_length``, or cannot generate.
    """
    check_generates(config)
    rows = as_array("source_ids", source_ids).shape[:1]
    batch = pair_batch(config, source_ids, np.full((*rows, 1), config.start_id or 0))
    length = config.target_max_length if max_length is None else max_length
    if type(length) is not int or not 1 <= length <= config.target_max_length:
        raise InputError(f"max_length is {length!r}; expected a whole number from 1 to {config.target_max_length}")
    return batch, length


def check_generates(config: ModelConfig) -> None:
    """Check that the model can generate.

    Raises:
        InputError: it has no decoder or no vocabulary, its special ids are unknown or equal, or its mask does not hide
            what is to come.
    """
    _check_decoder(config)
    if not config.target_vocabulary:
        raise InputError("this model reads vectors and has no vocabulary, so it cannot generate; use forward")
    missing = [name for name in ("start_id", "end_id", "pad_id") if getattr(config, name) is None]
    if missing:
        raise InputError(f"to generate, {', '.join(missing)} has to be known; set it in the configuration")
    if config.start_id == config.pad_id:
        raise InputError(f"to generate, start_id and pad_id have to differ, both are {config.pad_id}; set another one")
    if config.masking_value is not None and config.masking_value > _LARGEST_HIDING_VALUE:
        raise InputError(
            f"to generate, a masking_value of {config.masking_value} does not hide the tokens that are not there yet; "
            f"expected {_LARGEST_HIDING_VALUE} or less"
        )


def _check_decoder(config: ModelConfig) -> None:
    if config.kind != "encoder_decoder":
        alternatives = "attend" if config.kind == "attention" else "encode and heads"
        raise InputError(f"this model has no decoder, so it can neither run forward nor generate; use {alternatives}")


def _or_unpadded(config: ModelConfig, ids: Array, valid: Any) -> Any:
    """Return ``valid``; if it is None, a mask that is True for every id but the pad id."""
    if valid is not None:
        return valid
    return np.ones(ids.shape[:2], np.bool_) if config.pad_id is None else ids != config.pad_id
