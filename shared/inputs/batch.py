"""Batches: the checked inputs of a model, one class for each kind of model.

Shapes: B batch, S source length, T target length, D hidden size, H heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from triglot.shared.arrays import Array, Bools, Int32s
from triglot.shared.model.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Inputs that were checked against ``config``. ``valid``: bool (B, S), True for real tokens."""

    config: ModelConfig
    valid: Bools

    @property
    def rows(self) -> int:
        """The number of rows, B."""
        return len(self.valid)

    def real_tokens(self) -> dict[str, Bools]:
        """Which tokens are real, by the axis they lie along: "source", bool (B, S), and "target", bool (B, T)."""
        return {"source": self.valid}

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that are present, by field name. ``batch_from_arrays`` is the inverse."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


@dataclass(frozen=True, kw_only=True)
class EncoderBatch(Batch):
    """Inputs of an encoder.

    ``source``: token ids, int32 (B, S); or, for a model without a vocabulary, vectors (B, S, D), float32 or float64.
    ``segment_ids``, ``task_ids``: int32 (B, S); None if and only if the model has none.
    ``teacher``: float (B, S, D), the vectors to learn; None if there is nothing to learn.
    """

    source: Array
    segment_ids: Int32s | None = None
    task_ids: Int32s | None = None
    teacher: Array | None = None


@dataclass(frozen=True, kw_only=True)
class PairBatch(Batch):
    """Inputs of an encoder-decoder.

    ``source``: token ids, int32 (B, S). ``target``: token ids that the decoder reads, int32 (B, T). For a model without
    vocabularies, both are vectors, (B, S, D) and (B, T, D), float32 or float64.
    ``target_valid``: bool (B, T), True for real tokens.
    ``labels``: int32 (B, T), the token that should follow each target token, -1 where none counts; None if there is
    nothing to learn.
    """

    source: Array
    target: Array
    target_valid: Bools
    labels: Int32s | None = None

    def real_tokens(self) -> dict[str, Bools]:
        """See ``Batch.real_tokens``."""
        return {"source": self.valid, "target": self.target_valid}


@dataclass(frozen=True, kw_only=True)
class AttentionBatch(Batch):
    """Inputs of a model that is a single attention layer.

    ``query``: (B, T, D); ``key``, ``value``: (B, S, D), float32 or float64. ``valid`` is True for real keys.
    ``allowed``, bool, True = may attend, and ``bias``, float, added to the scores: broadcastable to (B, H, T, S).
    """

    query: Array
    key: Array
    value: Array
    allowed: Bools
    bias: Array

    def real_tokens(self) -> dict[str, Bools]:
        """See ``Batch.real_tokens``. Every query is real."""
        return {"source": self.valid, "target": np.ones(self.query.shape[:2], np.bool_)}


BATCH_CLASSES = {"encoder": EncoderBatch, "encoder_decoder": PairBatch, "attention": AttentionBatch}


def batch_from_arrays(config: ModelConfig, arrays: Mapping[str, Array]) -> Batch:
    """Rebuild a batch of a model of ``config`` from what ``Batch.arrays`` returned. Nothing is checked again."""
    return BATCH_CLASSES[config.kind](config=config, **arrays)
