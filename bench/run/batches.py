"""The batches that an arm computes: rows with a given share of real tokens, or English sentences."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from triglot.shared.choices import WITH_GRADIENTS
from triglot.shared.errors import InputError
from triglot.shared.inputs import Batch, PairBatch, labelled, padded_batches, random_batch, taught, text
from triglot.shared.model.config import ModelConfig

from .cases import Cell
from .texts import texts_of_calls, tokenized

SENTENCE_BATCHES = 8  # batches of sentences that one call computes


def batches_of_cell(cell: Cell, config: ModelConfig, tokenizer: Path | None, seed: int) -> Sequence[Batch]:
    """Return the batches of one call: a single padded one, or several of sentences.

    With workload "embed", all texts are one batch, from which the operations are counted. In other workloads, without a
    tokenizer, a sentence has as many tokens as words, and the tokens are random.

    Raises:
        InputError: the cell does not fit the model.
    """
    if cell.length > config.source_max_length:
        raise InputError(f"length is {cell.length}; the model allows up to {config.source_max_length}; lower it")
    if cell.workload == "embed":
        if tokenizer is None:
            raise InputError("texts need the tokenizer of the model; name a folder that has a tokenizer.json")
        timed, _ = texts_of_calls(cell.batch)
        return [tokenized(timed, tokenizer, cell.length, config)]
    batches = _inputs(cell, config, tokenizer, np.random.default_rng([seed, cell.batch, cell.length]))
    if cell.workload not in WITH_GRADIENTS:
        return batches
    return [
        _with_targets(config, batch, np.random.default_rng([seed, 1, number])) for number, batch in enumerate(batches)
    ]


def _with_targets(config: ModelConfig, batch: Batch, generator: np.random.Generator) -> Batch:
    """Add random labels or a random teacher. Their content does not change how long a step takes."""
    if isinstance(batch, PairBatch):
        return labelled(config, batch, generator.integers(0, config.target_vocabulary, batch.target.shape))
    if config.kind == "attention":
        return batch
    teacher = generator.standard_normal((*batch.valid.shape, config.hidden_size)).astype(np.float32)
    return taught(config, batch, teacher)


def _inputs(cell: Cell, config: ModelConfig, tokenizer: Path | None, generator: np.random.Generator) -> Sequence[Batch]:
    if cell.order == "padded":
        return [random_batch(config, row_lengths(cell.batch, cell.length, cell.fill, generator), generator)]
    rows, _ = _sentences_of_calls(cell, config, tokenizer, generator)
    return _batches_of_sentences(cell, config, rows, generator)


def further_batches(cell: Cell, config: ModelConfig, tokenizer: Path | None, seed: int) -> Sequence[Batch]:
    """Return the batches of another call, with other sentences and so with other shapes. Only for sentences."""
    generator = np.random.default_rng([seed, 2, cell.batch, cell.length])
    _, rows = _sentences_of_calls(cell, config, tokenizer, generator)
    return _batches_of_sentences(cell, config, rows, generator)


def _batches_of_sentences(
    cell: Cell, config: ModelConfig, rows: list[list[int]], generator: np.random.Generator
) -> Sequence[Batch]:
    if cell.order == "sorted":
        rows = sorted(rows, key=len, reverse=True)  # only the first batch is judged, so it should be the hardest
    if config.kind == "encoder" and config.source_vocabulary:
        return padded_batches(config, rows, cell.batch)
    parts = [rows[start : start + cell.batch] for start in range(0, len(rows), cell.batch)]
    return [random_batch(config, [len(row) for row in part], generator) for part in parts]


def row_lengths(rows: int, longest: int, fill: float, generator: np.random.Generator) -> list[int]:
    """Return the number of real tokens of each row. The first row is full, and together the rows have share ``fill``.

    Raises:
        InputError: ``fill`` is not a share, or is too small for so few tokens.
    """
    check_fill(fill)
    lengths = np.full(rows, longest)
    missing = round(rows * longest * (1 - fill))
    if missing > (rows - 1) * (longest - 1):
        raise InputError(
            f"fill is {fill:g}, too small for {rows} x {longest} tokens: the first row is full, and each other row has "
            "at least one token; raise --fill or --batch"
        )
    while missing:
        shortened = generator.integers(1, rows, missing)  # the rows that each lose a token
        taken = np.minimum(np.bincount(shortened, minlength=rows), lengths - 1)
        lengths -= taken
        missing -= int(taken.sum())
    return [int(length) for length in lengths]


def check_fill(fill: float) -> None:
    """Refuse a fill that is not a share.

    Raises:
        InputError: ``fill`` is not over 0 and up to 1.
    """
    if not 0 < fill <= 1:
        raise InputError(f"fill is {fill:g}; expected a share over 0 and up to 1")


def fill_of(batches: Sequence[Batch]) -> float:
    """Return the share of tokens that are real."""
    return sum(int(batch.valid.sum()) for batch in batches) / sum(batch.valid.size for batch in batches)


def first_rows(batch: Batch, tokens: int, *, least: int = 1, generated: int = 0) -> Batch:
    """Return the first rows of ``batch``: up to ``tokens`` tokens including padding, and at least ``least`` rows.

    ``generated`` is the length of the targets that are still to be generated.
    """
    width = max(generated, *(real.shape[1] for real in batch.real_tokens().values()))
    count = max(least, tokens // width)
    members = {name: array[:count] for name, array in batch.arrays().items() if len(array) == batch.rows}
    return replace(batch, **members)


def _sentences_of_calls(
    cell: Cell, config: ModelConfig, tokenizer: Path | None, generator: np.random.Generator
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the sentences of the timed call, and those of the further call.

    They come from one list, so no sentence is in both, unless there are too few sentences for such large batches.
    """
    half = SENTENCE_BATCHES * cell.batch
    rows = _sentences(cell, config, tokenizer, generator, 2 * half)
    return rows[:half], rows[half:]


def _sentences(
    cell: Cell, config: ModelConfig, tokenizer: Path | None, generator: np.random.Generator, count: int
) -> list[list[int]]:
    if tokenizer is not None:
        shortened = replace(config, source_max_length=cell.length)
        batches = text.text_batches(shortened, tokenizer, count, count)
        rows = [pair for batch in batches for pair in zip(batch.source, batch.valid, strict=True)]
        return [[int(token) for token in ids[valid]] for ids, valid in rows]
    word_counts = [min(len(sentence.split()), cell.length) for sentence in text.sentences(count)]
    return [generator.integers(0, max(1, config.source_vocabulary), length).tolist() for length in word_counts]
