"""Batches to run a model on: seeded random ones, rows of tokens, and those in a file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from triglot.shared.arrays import Array, Bools
from triglot.shared.errors import InputError
from triglot.shared.model.config import ModelConfig

from .validation import Batch, attention, batch, describe, pair


def random_batches(config: ModelConfig, count: int, batch_size: int, seed: int) -> list[Batch]:
    """Seeded batches of rows with very different lengths, from 1 up to the maximum of the model, at most 64.

    Raises:
        InputError: a number is too small.
    """
    for name, number, least in (("count", count, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        if number < least:
            raise InputError(f"{name} of the random batches is {number}; expected {least} or more")
    generator = np.random.default_rng([seed, count, batch_size])
    longest = min(config.source_max_length, 64)
    lengths = np.unique(np.geomspace(1, longest, count * batch_size).astype(int))
    lengths = np.resize(lengths, count * batch_size)
    generator.shuffle(lengths)
    return [
        random_batch(config, [int(n) for n in lengths[i * batch_size : (i + 1) * batch_size]], generator)
        for i in range(count)
    ]


def random_batch(config: ModelConfig, lengths: Sequence[int], generator: np.random.Generator) -> Batch:
    """One batch with rows of the ``lengths`` given, random ids (or vectors), padded to the longest."""
    shape = (len(lengths), max(lengths))
    valid = np.arange(shape[1]) < np.asarray(lengths)[:, None]
    if config.kind == "attention":
        return _random_attention(config, valid, generator)
    if not config.source_vocabulary:
        vectors = generator.standard_normal((*shape, config.hidden_size)).astype(np.float32)
        return batch(config, vectors, valid)
    ids = generator.integers(0, config.source_vocabulary, shape)
    if config.pad_id is not None:
        ids[~valid] = config.pad_id
    segments = generator.integers(0, config.segments, shape) if config.segments else None
    tasks = generator.integers(0, config.tasks, shape) if config.tasks else None
    if config.kind == "encoder_decoder":
        return _with_random_targets(config, ids, valid, generator)
    return batch(config, ids, valid, segments, tasks)


def _with_random_targets(config: ModelConfig, ids: Array, valid: Bools, generator: np.random.Generator) -> Batch:
    """Targets of other lengths than their sources: those of the next row, and one token more if there is room."""
    lengths = [min(int(row.sum()) + 1, config.target_max_length) for row in np.roll(valid, 1, axis=0)]
    shape = (len(lengths), max(lengths))
    target = generator.integers(0, config.target_vocabulary, shape)
    target_valid = np.arange(shape[1]) < np.asarray(lengths)[:, None]
    if config.pad_id is not None:
        target[~target_valid] = config.pad_id
    return pair(config, ids, target, valid, target_valid)


def _random_attention(config: ModelConfig, valid: Bools, generator: np.random.Generator) -> Batch:
    """Queries one longer than the keys if there is room, a bias, and a mask that forbids about a third."""
    rows, sources = valid.shape
    targets = min(sources + 1, config.target_max_length)
    drawn = [generator.standard_normal((rows, n, config.hidden_size)) for n in (targets, sources, sources)]
    query, key, value = (vectors.astype(np.float32) for vectors in drawn)
    shape = (rows, config.heads, targets, sources)
    allowed = generator.random(shape) < 2 / 3
    return attention(config, query, key, value, allowed, valid, generator.standard_normal(shape).astype(np.float32))


def padded_batches(config: ModelConfig, rows: Sequence[Sequence[int]], batch_size: int) -> list[Batch]:
    """Rows of token ids as batches in the order given, each padded to its longest row.

    Raises:
        InputError: a row holds no integers, or ids that the model does not have.
    """
    batches: list[Batch] = []
    for start in range(0, len(rows), batch_size):
        chunk = rows[start : start + batch_size]
        ids = np.full((len(chunk), max(map(len, chunk))), config.pad_id or 0, np.int64)
        valid = np.zeros(ids.shape, np.bool_)
        for row, tokens in enumerate(chunk):
            if len(tokens) and np.asarray(tokens).dtype.kind not in "iu":
                raise InputError(f"row {start + row} is {describe(np.asarray(tokens))}; expected integers")
            ids[row, : len(tokens)] = tokens
            valid[row, : len(tokens)] = True
        batches.append(batch(config, ids, valid))
    return batches


def read_batch(config: ModelConfig, path: Path) -> Batch:
    """The batch in an ``.npz`` of NumPy: ``token_ids`` and, if need be, ``valid``, ``segment_ids`` and ``task_ids``.

    For an encoder-decoder ``source_ids`` and ``target_ids`` and, if need be, ``source_valid`` and ``target_valid``; for
    attention alone ``query``, ``key`` and ``value`` and, if need be, ``allowed``, ``key_valid`` and ``bias``.

    Raises:
        InputError: the file cannot be read, holds something else, or does not fit ``config``.
    """
    known, needed = ("token_ids", "valid", "segment_ids", "task_ids"), ("token_ids",)
    if config.kind == "attention":
        known = ("query", "key", "value", "allowed", "key_valid", "bias")
        needed = ("query", "key", "value")
    if config.kind == "encoder_decoder":
        known, needed = ("source_ids", "target_ids", "source_valid", "target_valid"), ("source_ids", "target_ids")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
            if not all(isinstance(array, np.ndarray) for array in arrays.values()):
                raise ValueError("a member is no array")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; give an .npz of NumPy") from error
    except Exception as error:  # np.load documents three of the many that damaged files bring about
        raise InputError(f"cannot read {path}: it is no .npz of plain arrays; write it with numpy.savez") from error
    if unknown := sorted(set(arrays) - set(known)):
        raise InputError(f"{path} holds {', '.join(unknown)}; expected {', '.join(known)}")
    if missing := [name for name in needed if name not in arrays]:
        raise InputError(f"{path} holds no {', '.join(missing)}; expected {', '.join(known)}")
    if config.kind == "attention":
        return attention(config, **arrays)
    return pair(config, **arrays) if config.kind == "encoder_decoder" else batch(config, **arrays)
