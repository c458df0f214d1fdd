"""Unusual inputs: what users do and random batches do not, one batch for each kind.

``length_one``       a single token: nothing to average, nothing to mask
``maximum_length``   rows of the greatest length: the last position, the longest sums
``short_rows``       more rows than in any other batch, an odd number, of one token or two
``repeated_tokens``  each row repeats one token, so rounding decides what differs
``edge_ids``         the first and the last id of the vocabulary, the special ids, and the largest segment and task
``left_padding``     padding at the left, as decoders are often batched: positions still count from the first column
``holes``            padding anywhere, also at the first token
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from triglot.shared.arrays import Array, Bools
from triglot.shared.inputs import AttentionBatch, Batch, PairBatch, random_batch
from triglot.shared.model.config import ModelConfig

NAMES = ("length_one", "maximum_length", "short_rows", "repeated_tokens", "edge_ids", "left_padding", "holes")
MANY_ROWS = 35


def unusual_batch(name: str, config: ModelConfig, lengths: Sequence[int], generator: np.random.Generator) -> Batch:
    """Return the batch ``name``, one of ``NAMES``. Where it needs no size of its own, its rows have ``lengths``."""
    if name == "length_one":
        return random_batch(config, [1], generator)
    if name == "maximum_length":
        # One row is cheapest, unless other batches have this shape already, for which frameworks have compiled.
        rows = len(lengths) if max(lengths) == config.source_max_length else 1
        return random_batch(config, [config.source_max_length] * rows, generator)
    if name == "short_rows":
        return random_batch(config, [min(1 + row % 2, config.source_max_length) for row in range(MANY_ROWS)], generator)
    full = random_batch(config, [max(lengths)] * len(lengths), generator)
    if name == "repeated_tokens":
        return _repeated(full)
    if name == "edge_ids":
        return _edges(full, generator)
    return _padded(full, _at_the_left(lengths) if name == "left_padding" else _with_holes(lengths, generator))


def scaled(batch: Batch, scale: float) -> Batch:
    """Return the batch with its vectors multiplied by ``scale``. Token ids stay."""
    vectors = {name: array for name, array in batch.arrays().items() if array.dtype.kind == "f"}
    return replace(batch, **{name: (array * scale).astype(array.dtype) for name, array in vectors.items()})


def shifted(batch: Batch, offset: float) -> Batch:
    """Return the batch with ``offset`` added to its vectors, except to a bias of scores. Token ids stay."""
    vectors = {name: array for name, array in batch.arrays().items() if array.dtype.kind == "f" and name != "bias"}
    return replace(batch, **{name: (array + offset).astype(array.dtype) for name, array in vectors.items()})


def _at_the_left(lengths: Sequence[int]) -> Bools:
    return np.arange(max(lengths), 0, -1) <= np.asarray(lengths)[:, None]


def _with_holes(lengths: Sequence[int], generator: np.random.Generator) -> Bools:
    valid = generator.random((len(lengths), max(lengths))) < 0.6
    valid[0, 0] = False
    valid[:, -1] = True  # a row without any real token is refused
    return valid


def _padded(batch: Batch, valid: Bools) -> Batch:
    """Return a batch of which only the ``valid`` tokens are real, in the source and, as far as it goes, the target."""
    changes: dict[str, Any] = {"valid": valid}
    pad_id = batch.config.pad_id
    if isinstance(batch, PairBatch):
        columns = [column % valid.shape[1] for column in range(batch.target.shape[1])]
        changes["target_valid"] = target_valid = valid[::-1][:, columns]
        if pad_id is not None:
            changes["target"] = np.where(target_valid, batch.target, pad_id).astype(batch.target.dtype)
    if pad_id is not None and not isinstance(batch, AttentionBatch):
        source: Array = changes.get("source", batch.arrays()["source"])
        changes["source"] = np.where(valid, source, pad_id).astype(source.dtype)
    return replace(batch, **changes)


def _repeated(batch: Batch) -> Batch:
    """Return the batch with each row's first token, or vector, in all places."""
    names = ("query", "key", "value") if isinstance(batch, AttentionBatch) else ("source", "target")
    arrays = batch.arrays()
    return replace(
        batch, **{name: np.repeat(arrays[name][:, :1], arrays[name].shape[1], 1) for name in names if name in arrays}
    )


def _edges(batch: Batch, generator: np.random.Generator) -> Batch:
    """Return the batch with ids at the ends of their ranges; without a vocabulary, with vectors of zero variance."""
    config, arrays = batch.config, batch.arrays()
    if not config.source_vocabulary:
        names = [name for name in ("query", "key", "value", "source") if name in arrays]
        return replace(batch, **{name: _flat(arrays[name]) for name in names})
    special = [identifier for identifier in (config.pad_id, config.start_id, config.end_id) if identifier is not None]
    ranges: dict[str, tuple[int, list[int]]] = {
        "source": (config.source_vocabulary, special if config.kind == "encoder_decoder" else special[:1]),
        "target": (config.target_vocabulary, special),
        "segment_ids": (config.segments, []),
        "task_ids": (config.tasks, []),
    }
    changes: dict[str, Array] = {}
    for name, (count, ids) in ranges.items():
        if name in arrays:
            allowed = [identifier for identifier in (0, count - 1, *ids) if identifier < count]
            changes[name] = generator.choice(allowed, arrays[name].shape).astype(arrays[name].dtype)
    return replace(batch, **changes)


def _flat(vectors: Array) -> Array:
    """Return the vectors with every other one constant."""
    flat = vectors.copy()
    flat[:, ::2] = flat[:, ::2, :1]
    return flat
