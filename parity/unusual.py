"""Unusual inputs: what users do and random batches do not, one batch for each kind.

``length_one``       a single token, and a target of one: nothing to average, nothing to mask
``maximum_length``   the greatest length, with a little padding inside, and the longest target: the last position, the
                     longest sums; a single row, but not in a short model
``short_rows``       more rows than in any other batch, an odd number, of one token or two
``repeated_tokens``  each row repeats one token, so rounding decides what differs
``edge_ids``         the first and the last id of the vocabulary, the special ids, and the largest segment and task
``left_padding``     padding at the left, as decoders are often batched: positions still count from the first column
``holes``            padding anywhere, also at the first token

With ``left_padding``, targets are half as long as sources, and attention alone has one mask for all rows and heads, and
no bias. With ``holes``, targets are as long as sources and without padding, and attention alone has one bias for all
heads, some of it -1e9.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from triglot.shared.arrays import Array, Bools
from triglot.shared.inputs import AttentionBatch, Batch, PairBatch, random_batch
from triglot.shared.model.config import ModelConfig

NAMES = ("length_one", "maximum_length", "short_rows", "repeated_tokens", "edge_ids", "left_padding", "holes")
MANY_ROWS = 67


def unusual_batch(name: str, config: ModelConfig, lengths: Sequence[int], generator: np.random.Generator) -> Batch:
    """Return the batch ``name``, one of ``NAMES``. Where it needs no size of its own, its rows have ``lengths``."""
    if name == "length_one":
        return _with_targets(random_batch(config, [1], generator), 1, generator)
    if name == "maximum_length":
        return _with_targets(_longest(config, lengths, generator), config.target_max_length, generator)
    if name == "short_rows":
        return random_batch(config, [min(1 + row % 2, config.source_max_length) for row in range(MANY_ROWS)], generator)
    full = random_batch(config, [max(lengths)] * len(lengths), generator)
    special = {"repeated_tokens": _repeated, "edge_ids": _edges, "left_padding": _at_the_left, "holes": _with_holes}
    return special[name](full, lengths, generator)


def scaled(batch: Batch, scale: float) -> Batch:
    """Return the batch with its vectors multiplied by ``scale``. Token ids stay."""
    vectors = {name: array for name, array in batch.arrays().items() if array.dtype.kind == "f"}
    return replace(batch, **{name: (array * scale).astype(array.dtype) for name, array in vectors.items()})


def shifted(batch: Batch, offset: float) -> Batch:
    """Return the batch with ``offset`` added to its vectors, except to a bias of scores. Token ids stay."""
    vectors = {name: array for name, array in batch.arrays().items() if array.dtype.kind == "f" and name != "bias"}
    return replace(batch, **{name: (array + offset).astype(array.dtype) for name, array in vectors.items()})


def _longest(config: ModelConfig, lengths: Sequence[int], generator: np.random.Generator) -> Batch:
    """Return rows of the greatest length in which one token of 20 is padding, but not the last one."""
    # One row is cheapest, unless other batches have this shape already, for which frameworks have compiled.
    longest = config.source_max_length
    rows = len(lengths) if max(lengths) == longest else 1
    valid = np.broadcast_to(np.arange(longest) % 20 != 1, (rows, longest)).copy()
    valid[:, -1] = True
    return _padded(random_batch(config, [longest] * rows, generator), valid)


def _at_the_left(batch: Batch, lengths: Sequence[int], generator: np.random.Generator) -> Batch:
    """Return the batch with padding at the left, and targets half as long; attention alone has one mask and no bias."""
    half = (max(lengths) + 1) // 2
    padded = _with_targets(_padded(batch, _last(lengths)), half, generator)
    if isinstance(padded, PairBatch):
        longest = padded.target.shape[1]
        valid = _last([longest, *(min(length, longest) for length in lengths[1:])])
        padded = replace(padded, target=_with_pad_id(padded.target, valid, padded.config), target_valid=valid)
    if isinstance(padded, AttentionBatch):
        padded = replace(padded, allowed=padded.allowed[:1, :1], bias=np.zeros_like(padded.bias[:1, :1]))
    return padded


def _with_holes(batch: Batch, lengths: Sequence[int], generator: np.random.Generator) -> Batch:
    """Return the batch with padding anywhere, but not in targets, which are as long; attention alone has one bias."""
    valid = generator.random((len(lengths), max(lengths))) < 0.6
    valid[0, 0] = False
    valid[:, -1] = True  # a row without any real token is refused
    padded = _with_targets(_padded(batch, valid), max(lengths), generator)
    if isinstance(padded, AttentionBatch):
        shared = padded.bias[:, :1]
        bias = np.where(generator.random(shared.shape) < 0.1, -1e9, shared).astype(shared.dtype)
        padded = replace(padded, bias=bias)
    return padded


def _last(lengths: Sequence[int]) -> Bools:
    """Return a mask of the last tokens of each row, of which the longest row has only real ones."""
    return np.arange(max(lengths), 0, -1) <= np.asarray(lengths)[:, None]


def _padded(batch: Batch, valid: Bools) -> Batch:
    """Return a batch of which only the ``valid`` tokens of the sources are real."""
    if isinstance(batch, AttentionBatch):
        return replace(batch, valid=valid)
    changes: dict[str, Array] = {"valid": valid, "source": _with_pad_id(batch.arrays()["source"], valid, batch.config)}
    return replace(batch, **changes)


def _with_pad_id(ids: Array, valid: Bools, config: ModelConfig) -> Array:
    return ids if config.pad_id is None else np.where(valid, ids, config.pad_id).astype(ids.dtype)


def _with_targets(batch: Batch, length: int, generator: np.random.Generator) -> Batch:
    """Return the batch with new targets of this length, if the model allows it, without padding."""
    config, rows = batch.config, batch.rows
    length = min(length, config.target_max_length)
    if isinstance(batch, PairBatch):
        if config.target_vocabulary:
            target = generator.integers(0, config.target_vocabulary, (rows, length))
        else:
            target = generator.standard_normal((rows, length, config.hidden_size))
        return replace(batch, target=target.astype(batch.target.dtype), target_valid=np.ones((rows, length), np.bool_))
    if isinstance(batch, AttentionBatch):
        query = generator.standard_normal((rows, length, config.hidden_size)).astype(batch.query.dtype)
        shape = (rows, config.heads, length, batch.key.shape[1])
        bias = generator.standard_normal(shape).astype(batch.bias.dtype)
        return replace(batch, query=query, allowed=generator.random(shape) < 2 / 3, bias=bias)
    return batch


def _repeated(batch: Batch, _: Sequence[int], __: np.random.Generator) -> Batch:
    """Return the batch with each row's first token, or vector, in all places."""
    names = ("query", "key", "value") if isinstance(batch, AttentionBatch) else ("source", "target")
    arrays = batch.arrays()
    return replace(
        batch, **{name: np.repeat(arrays[name][:, :1], arrays[name].shape[1], 1) for name in names if name in arrays}
    )


def _edges(batch: Batch, _: Sequence[int], generator: np.random.Generator) -> Batch:
    """Return the batch with ids at the ends of their ranges; without a vocabulary, with vectors of zero variance."""
    config, arrays = batch.config, batch.arrays()
    if not config.source_vocabulary:
        names = [name for name in ("query", "key", "value", "source", "target") if name in arrays]
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
