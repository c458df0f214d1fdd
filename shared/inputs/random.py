"""Seeded random batches."""

from collections.abc import Sequence

import numpy as np

from triglot.shared.arrays import Array, Bools
from triglot.shared.errors import InputError
from triglot.shared.model.config import ModelConfig

from .attention import attention_batch
from .batch import AttentionBatch, Batch, PairBatch
from .encoder import encoder_batch
from .pair import pair_batch

_LONGEST = 64  # tokens of a random row, if the model allows that many


def random_batches(config: ModelConfig, count: int, batch_size: int, seed: int) -> list[Batch]:
    """Draw batches whose rows have very different lengths, from 1 to the maximum of the model, at most 64.

    A row of each batch has the greatest length, so that all batches have the same shape.

    Raises:
        InputError: a number is too small.
    """
    for name, number, minimum in (("count", count, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        if number < minimum:
            raise InputError(f"{name} of the random batches is {number}; expected {minimum} or more")
    generator = np.random.default_rng([seed, count, batch_size])
    longest = min(config.source_max_length, _LONGEST)
    lengths = np.unique(np.geomspace(1, longest, count * batch_size).astype(int))
    lengths = np.resize(lengths, count * batch_size)
    generator.shuffle(lengths)
    for batch in lengths.reshape(count, batch_size):
        batch[batch.argmax()] = longest
    return [
        random_batch(config, [int(n) for n in lengths[i * batch_size : (i + 1) * batch_size]], generator)
        for i in range(count)
    ]


def random_batch(config: ModelConfig, lengths: Sequence[int], generator: np.random.Generator) -> Batch:
    """Draw one batch. Row i has ``lengths[i]`` random ids (or vectors), padded to the longest row."""
    shape = (len(lengths), max(lengths))
    valid = np.arange(shape[1]) < np.asarray(lengths)[:, None]
    if config.kind == "attention":
        return _random_attention(config, valid, generator)
    if not config.source_vocabulary:
        vectors = _random_vectors(config, shape, generator)
        if config.kind == "encoder_decoder":
            return _with_random_targets(config, vectors, valid, generator)
        return encoder_batch(config, vectors, valid)
    ids = generator.integers(0, config.source_vocabulary, shape)
    if config.pad_id is not None:
        ids[~valid] = config.pad_id
    segments = generator.integers(0, config.segments, shape) if config.segments else None
    tasks = generator.integers(0, config.tasks, shape) if config.tasks else None
    if config.kind == "encoder_decoder":
        return _with_random_targets(config, ids, valid, generator)
    return encoder_batch(config, ids, valid, segments, tasks)


def _random_vectors(config: ModelConfig, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    return generator.standard_normal((*shape, config.hidden_size)).astype(np.float32)


def _with_random_targets(config: ModelConfig, source: Array, valid: Bools, generator: np.random.Generator) -> PairBatch:
    """Draw targets whose lengths differ from their sources': the next row's length, plus one if the model allows it."""
    lengths = [min(int(row.sum()) + 1, config.target_max_length) for row in np.roll(valid, 1, axis=0)]
    shape = (len(lengths), max(lengths))
    target_valid = np.arange(shape[1]) < np.asarray(lengths)[:, None]
    if not config.target_vocabulary:
        return pair_batch(config, source, _random_vectors(config, shape, generator), valid, target_valid)
    target = generator.integers(0, config.target_vocabulary, shape)
    if config.pad_id is not None:
        target[~target_valid] = config.pad_id
    return pair_batch(config, source, target, valid, target_valid)


def _random_attention(config: ModelConfig, valid: Bools, generator: np.random.Generator) -> AttentionBatch:
    """Draw one query more than keys if the model allows it, a bias, and a mask that forbids about a third."""
    rows, sources = valid.shape
    targets = min(sources + 1, config.target_max_length)
    drawn = [generator.standard_normal((rows, n, config.hidden_size)) for n in (targets, sources, sources)]
    query, key, value = (vectors.astype(np.float32) for vectors in drawn)
    shape = (rows, config.heads, targets, sources)
    allowed = generator.random(shape) < 2 / 3
    bias = generator.standard_normal(shape).astype(np.float32)
    return attention_batch(config, query, key, value, allowed, valid, bias)
