"""Batches for encoders."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from triglot.shared.arrays import Int32s
from triglot.shared.errors import InputError
from triglot.shared.model.config import ModelConfig

from .batch import EncoderBatch
from .validation import as_array, describe, ids_in_range, source_tokens, source_valid_mask


def encoder_batch(
    config: ModelConfig, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None
) -> EncoderBatch:
    """Check the inputs of ``Model.encode``. By default all tokens are real, and all segment and task ids are 0.

    Raises:
        InputError: an input does not fit the model; names the input, its value and what was expected.
    """
    if config.kind == "attention":
        raise InputError("this model is attention alone, so there is nothing to encode; use attend")
    source = source_tokens(config, "token_ids", token_ids)
    shape = source.shape[:2]
    return EncoderBatch(
        config=config,
        source=source,
        valid=source_valid_mask("valid", valid, shape),
        segment_ids=_ids("segment_ids", segment_ids, config.segments, shape),
        task_ids=_ids("task_ids", task_ids, config.tasks, shape),
    )


def heads_batch(
    config: ModelConfig, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None
) -> EncoderBatch:
    """Check the inputs of ``Model.heads``; see ``encoder_batch``.

    Raises:
        InputError: see ``encoder_batch``; or the heads read the output of a decoder, which needs a target.
    """
    if config.kind == "encoder_decoder":
        raise InputError("the heads of this model stand on its decoder; use forward")
    return encoder_batch(config, token_ids, valid, segment_ids, task_ids)


def padded_batches(
    config: ModelConfig, rows: Sequence[Sequence[int]], batch_size: int, length: int = 0
) -> list[EncoderBatch]:
    """Put rows of token ids into batches, in the same order.

    Each batch is padded to its longest row, and to ``length`` if that is more.

    Raises:
        InputError: a row is empty, or holds something other than ids of the vocabulary.
    """
    batches: list[EncoderBatch] = []
    for start in range(0, len(rows), batch_size):
        chunk = rows[start : start + batch_size]
        ids = np.full((len(chunk), max(length, *map(len, chunk))), config.pad_id or 0, np.int64)
        valid = np.zeros(ids.shape, np.bool_)
        for row, tokens in enumerate(chunk):
            if len(tokens) and np.asarray(tokens).dtype.kind not in "iu":
                raise InputError(f"row {start + row} is {describe(np.asarray(tokens))}; expected integers")
            ids[row, : len(tokens)] = tokens
            valid[row, : len(tokens)] = True
        batches.append(encoder_batch(config, ids, valid))
    return batches


def _ids(name: str, value: Any, vocabulary: int, shape: tuple[int, ...]) -> Int32s | None:
    if value is None:
        return np.zeros(shape, np.int32) if vocabulary else None
    ids = as_array(name, value)
    if not vocabulary:
        raise InputError(f"{name} was given, but this model has none; leave it out")
    if ids.shape != shape or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"{name} is {describe(ids)}; expected integers {shape}")
    return ids_in_range(name, ids, vocabulary)
