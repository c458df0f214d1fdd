"""Batches: checked, random, or from a file. ``text.py`` makes batches of real text; it is imported on its own."""

from .attention import attention_batch
from .batch import AttentionBatch, Batch, EncoderBatch, PairBatch, batch_from_arrays
from .encoder import encoder_batch, heads_batch, padded_batches
from .files import batch_in, read_arrays, read_batch
from .fit import check_batch, fit_dtype
from .pair import check_generates, generation_batch, pair_batch, sources_to_generate_from
from .random import random_batch, random_batches
from .targets import check_trainable, labelled, taught, teacher_forcing, to_train
from .validation import check_valid, describe

__all__ = [
    "AttentionBatch",
    "Batch",
    "EncoderBatch",
    "PairBatch",
    "attention_batch",
    "batch_from_arrays",
    "batch_in",
    "check_batch",
    "check_generates",
    "check_trainable",
    "check_valid",
    "describe",
    "encoder_batch",
    "fit_dtype",
    "generation_batch",
    "heads_batch",
    "labelled",
    "padded_batches",
    "pair_batch",
    "random_batch",
    "random_batches",
    "read_arrays",
    "read_batch",
    "sources_to_generate_from",
    "taught",
    "teacher_forcing",
    "to_train",
]
