"""Whether a batch fits a model and its dtype."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from triglot.shared.arrays import LARGEST_FLOAT16, Array
from triglot.shared.errors import InputError
from triglot.shared.model.config import ModelConfig

from .attention import attention_batch
from .batch import BATCH_CLASSES, AttentionBatch, Batch, EncoderBatch, PairBatch
from .encoder import encoder_batch
from .pair import pair_batch


def check_batch(config: ModelConfig, batch: Any) -> Batch:
    """Check a batch again, for a model of ``config``, and return it without its labels or its teacher.

    The arrays may have changed since the batch was made, or it may have been made for another model.

    Raises:
        InputError: it is not a batch, or does not fit the model.
    """
    if not isinstance(batch, Batch):
        raise InputError(
            f"the batch is a {type(batch).__name__}; expected a Batch, as triglot.batch or triglot.teacher_forcing "
            "makes one"
        )
    expected: type[Batch] = BATCH_CLASSES[config.kind]
    if not isinstance(batch, expected):
        raise InputError(
            f"the batch is of class {type(batch).__name__}; expected {expected.__name__}, because the model is of kind "
            f"{config.kind}"
        )
    if isinstance(batch, AttentionBatch):
        return attention_batch(config, batch.query, batch.key, batch.value, batch.allowed, batch.valid, batch.bias)
    if isinstance(batch, PairBatch):
        return pair_batch(config, batch.source, batch.target, batch.valid, batch.target_valid)
    assert isinstance(batch, EncoderBatch)
    ids = [
        None if ids is None or not (vocabulary or ids.any()) else ids  # without segments, all zeros say nothing
        for ids, vocabulary in ((batch.segment_ids, config.segments), (batch.task_ids, config.tasks))
    ]
    return encoder_batch(config, batch.source, batch.valid, *ids)


def fit_dtype(arrays: Mapping[str, Array], dtype: str) -> dict[str, Array]:
    """Return the arrays of a batch for a model in ``dtype``: in float16, the bias ends where float16 does.

    Raises:
        InputError: another input holds a number that float16 cannot hold.
    """
    if dtype != "float16":
        return dict(arrays)
    fitting = dict(arrays)
    if "bias" in fitting:
        fitting["bias"] = np.clip(fitting["bias"], -LARGEST_FLOAT16, LARGEST_FLOAT16)
    for name, array in fitting.items():
        if array.dtype.kind == "f" and (np.abs(array) > LARGEST_FLOAT16).any():
            raise InputError(f"{name} holds a number beyond 65504, which float16 cannot hold; use dtype float32")
    return fitting
