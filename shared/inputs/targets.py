"""What a model learns from a batch: labels for an encoder-decoder, the vectors of a teacher for an encoder."""

from dataclasses import replace
from typing import Any

import numpy as np

from triglot.shared.errors import InputError, TrainingError
from triglot.shared.model.config import ModelConfig

from .batch import Batch, EncoderBatch, PairBatch
from .fit import check_batch
from .pair import pair_batch
from .validation import as_array, describe, ids_in_range


def teacher_forcing(config: ModelConfig, source_ids: Any, target_ids: Any, source_valid: Any = None) -> PairBatch:
    """Make a batch to train on: the decoder reads all but the last token of each target, and predicts the next ones.

    ``source_ids``: integers (B, S). ``target_ids``: integers (B, T + 1), whole sentences from the start id on. Padding
    is never a label.

    Raises:
        InputError: see ``pair_batch``; or the model has no vocabulary, a target is shorter than two tokens, or no label
            is left.
    """
    _check_predicts(config)
    ids = as_array("target_ids", target_ids)
    if ids.ndim != 2 or ids.shape[1] < 2:
        raise InputError(f"target_ids is {describe(ids)}; expected integers (B, T), of at least two tokens each")
    batch = pair_batch(config, source_ids, ids[:, :-1], source_valid)
    next_ids = ids_in_range("target_ids", ids[:, 1:], config.target_vocabulary)
    return labelled(
        config, batch, next_ids if config.pad_id is None else np.where(next_ids != config.pad_id, next_ids, -1)
    )


def labelled(config: ModelConfig, batch: Batch, labels: Any) -> PairBatch:
    """Add labels: integers (B, T), the token that should follow each target token, -1 where none counts.

    Raises:
        InputError: the batch does not fit the model, the model has no vocabulary, the labels do not fit the targets, or
            none counts.
    """
    _check_predicts(config)
    pair = check_batch(config, batch)
    if not isinstance(pair, PairBatch):
        raise InputError(f"this model is an {config.kind}; expected an encoder_decoder, which alone learns labels")
    ids = as_array("labels", labels)
    if ids.shape != pair.target.shape or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"labels is {describe(ids)}; expected integers {pair.target.shape}")
    if ids.min() < -1 or ids.max() >= config.target_vocabulary:
        wrong = int(ids.min() if ids.min() < -1 else ids.max())
        raise InputError(f"labels holds {wrong}; expected ids from 0 to {config.target_vocabulary - 1}, or -1 for none")
    # Padding has no scores, so its labels cannot count.
    counted = np.where(pair.target_valid, ids, -1).astype(np.int32)
    if not (counted >= 0).any():
        raise InputError("no label counts: all are -1, or are at padding tokens; give at least one")
    return replace(pair, labels=counted)


def taught(config: ModelConfig, given: Batch, teacher: Any) -> EncoderBatch:
    """Add a teacher: float (B, S, D), the vectors that an encoder should return. Those at padding do not count.

    Raises:
        InputError: the model is not an encoder, the batch does not fit it, the vectors do not fit the batch, or they
            are not finite in float32 at a real token.
    """
    if config.kind != "encoder":
        raise InputError(f"this model is of kind {config.kind}; expected an encoder, which alone learns from a teacher")
    batch = check_batch(config, given)
    assert isinstance(batch, EncoderBatch)
    vectors = as_array("teacher", teacher)
    shape = (*batch.valid.shape, config.hidden_size)
    if vectors.shape != shape or vectors.dtype.name not in ("float32", "float64"):
        raise InputError(f"teacher is {describe(vectors)}; expected float32 or float64 {shape}")
    # The output at padding is always zero, so there is nothing to learn.
    counted = np.where(batch.valid[:, :, None], vectors, np.zeros((), vectors.dtype))
    with np.errstate(over="ignore"):
        if not np.isfinite(counted.astype(np.float32)).all():
            raise InputError("teacher holds numbers at a real token that are not finite in float32; take smaller ones")
    return replace(batch, teacher=counted)


def to_train(config: ModelConfig, batch: Batch) -> Batch:
    """Return the batch if a model of ``config`` can learn from it.

    Raises:
        InputError: the batch was made for a model that it does not fit, or there is nothing to learn from it.
        TrainingError: see ``check_trainable``.
    """
    check_trainable(config)
    if isinstance(batch, EncoderBatch) and config.kind == "encoder":
        if batch.teacher is None:
            raise InputError("the batch has no teacher, the vectors that the encoder should return; add it with taught")
        return taught(config, batch, batch.teacher)
    if isinstance(batch, PairBatch) and config.kind == "encoder_decoder":
        if batch.labels is None:
            raise InputError("the batch has no labels; make it with teacher_forcing, or add them with labelled")
        return labelled(config, batch, batch.labels)
    return check_batch(config, batch)  # refuses it


def _check_predicts(config: ModelConfig) -> None:
    if config.kind == "encoder_decoder" and not config.target_vocabulary:
        raise InputError(
            "this model reads vectors and has no vocabulary, so there are no tokens to predict; use forward"
        )


def check_trainable(config: ModelConfig) -> None:
    """Refuse a model without a loss.

    Raises:
        TrainingError: the model is attention alone, or an encoder-decoder without a head.
    """
    if config.kind == "encoder_decoder" and not config.heads_on_top:
        raise TrainingError(
            "this model is an encoder_decoder without a vocabulary, which has no loss; train one with a vocabulary, "
            "such as translation"
        )
    if config.kind == "attention":
        raise TrainingError(
            "this model is attention alone, which has no loss; train a model of kind encoder or encoder_decoder, such "
            "as translation"
        )
