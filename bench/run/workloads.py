"""What an arm is given to compute: batches with a share of real tokens, or sentences as long as they really are."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from triglot.shared.arrays import Bools
from triglot.shared.errors import InputError
from triglot.shared.inputs import Batch, EncoderBatch, PairBatch, labelled, padded_batches, random_batch, taught, text
from triglot.shared.model.config import ModelConfig

from .arms import TRAINS
from .cases import Cell

RAGGED_BATCHES = 8  # batches of sentences that one call works through


def batches_of(cell: Cell, config: ModelConfig, tokenizer: Path | None, seed: int) -> Sequence[Batch]:
    """The batches of a call: one of the cell's shape, or several of real sentences.

    Without a tokenizer, a sentence has as many tokens as words, and they are random.

    Raises:
        InputError: the length is over the maximum of the model.
    """
    if cell.length > config.source_max_length:
        raise InputError(f"length {cell.length} is over the maximum {config.source_max_length} of the model; cut it")
    batches = _untaught(cell, config, tokenizer, np.random.default_rng([seed, cell.batch, cell.length]))
    if cell.workload not in TRAINS:
        return batches
    return [_to_learn(config, batch, np.random.default_rng([seed, 1, place])) for place, batch in enumerate(batches)]


def _to_learn(config: ModelConfig, batch: Batch, generator: np.random.Generator) -> Batch:
    """Random labels, or a random teacher: what is learned does not matter to the time that it takes."""
    if isinstance(batch, PairBatch):
        return labelled(config, batch, generator.integers(0, config.target_vocabulary, batch.target.shape))
    if config.kind == "attention":
        return batch
    teacher = generator.standard_normal((*batch.valid.shape, config.hidden_size)).astype(np.float32)
    return taught(config, batch, teacher)


def _untaught(
    cell: Cell, config: ModelConfig, tokenizer: Path | None, generator: np.random.Generator
) -> Sequence[Batch]:
    if cell.order == "padded":
        return [random_batch(config, lengths(cell.batch, cell.length, cell.fill, generator), generator)]
    rows = _sentences(cell, config, tokenizer, generator)
    if cell.order == "sorted":
        rows = sorted(rows, key=len, reverse=True)  # the first batch is judged: that should not be the easiest
    if config.kind == "encoder" and config.source_vocabulary:
        return padded_batches(config, rows, cell.batch)
    parts = [rows[start : start + cell.batch] for start in range(0, len(rows), cell.batch)]
    return [random_batch(config, [len(row) for row in part], generator) for part in parts]


def lengths(rows: int, longest: int, fill: float, generator: np.random.Generator) -> list[int]:
    """How many tokens of each row are real: the first is whole, and all together are the share ``fill``, rounded.

    Raises:
        InputError: there is no such share, or none of so few tokens.
    """
    if not 0 < fill <= 1:
        raise InputError(f"fill {fill:g} is no share; expected more than 0, up to 1")
    found = np.full(rows, longest)
    missing = round(rows * longest * (1 - fill))
    if missing > (rows - 1) * (longest - 1):
        raise InputError(
            f"fill {fill:g} leaves too few of {rows} x {longest} tokens: one row has to be whole, and each has one; "
            "raise the fill, or the batch"
        )
    while missing:
        short = generator.integers(1, rows, missing)  # which rows lose a token
        taken = np.minimum(np.bincount(short, minlength=rows), found - 1)
        found -= taken
        missing -= int(taken.sum())
    return [int(length) for length in found]


def fill_of(batches: Sequence[Batch]) -> float:
    """The share of tokens that are real."""
    return sum(int(batch.valid.sum()) for batch in batches) / sum(batch.valid.size for batch in batches)


def first_rows(batch: Batch, tokens: int, *, least: int = 1, generated: int = 0) -> Batch:
    """The first rows, of ``tokens`` tokens with padding at most, and ``least`` at least: what the reference computes.

    ``generated``: how long each target becomes that is not there yet.
    """
    width = max(generated, *(real.shape[1] for real in batch.real_tokens().values()))
    count = max(least, tokens // width)
    members = {name: array[:count] for name, array in batch.arrays().items() if len(array) == batch.rows}
    return replace(batch, **members)


def _sentences(
    cell: Cell, config: ModelConfig, tokenizer: Path | None, generator: np.random.Generator
) -> list[list[int]]:
    count = RAGGED_BATCHES * cell.batch
    if tokenizer is not None:
        shorter = replace(config, source_max_length=cell.length)
        batches = text.text_batches(shorter, tokenizer, count, count)
        return [[int(token) for token in row[real]] for row, real in _rows(batches)]
    words = [min(len(sentence.split()), cell.length) for sentence in text.sentences(count)]
    return [generator.integers(0, max(1, config.source_vocabulary), length).tolist() for length in words]


def _rows(batches: Sequence[EncoderBatch]) -> list[tuple[np.ndarray, Bools]]:
    return [(row, real) for batch in batches for row, real in zip(batch.source, batch.valid, strict=True)]
