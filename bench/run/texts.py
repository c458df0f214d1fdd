"""The texts of a call with workload "embed"."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triglot.shared.inputs.batch import EncoderBatch
from triglot.shared.inputs.encoder import padded_batches
from triglot.shared.inputs.text import sentences
from triglot.shared.inputs.tokenizer import TextTokenizer
from triglot.shared.model.config import ModelConfig

VECTORS = "sentence_embedding"  # the head whose outputs are judged
JUDGED = 12  # texts; the reference computes their vectors in a few seconds


@dataclass(frozen=True)
class Texts:
    """The texts of a call, the tokenizer file of their model, and the folder of the model."""

    texts: list[str]
    tokenizer: Path
    folder: Path


def texts_of_calls(count: int) -> tuple[list[str], list[str]]:
    """Return the texts of the timed call, and those of a further call: ``count`` English sentences each.

    The first ``JUDGED`` texts of the timed call are judged. Their lengths differ, so an arm puts most of them into
    different batches.
    """
    texts = sentences(2 * count)
    timed, further = texts[:count], texts[count:]
    longest_first = sorted(range(count), key=lambda place: -len(timed[place]))
    ranks: list[int] = np.linspace(0, count - 1, min(JUDGED, count)).round().astype(int).tolist()
    judged = [longest_first[rank] for rank in ranks]
    others = [place for place in range(count) if place not in judged]
    return [timed[place] for place in (*judged, *others)], further


def tokenized(texts: Sequence[str], tokenizer: Path, length: int, config: ModelConfig) -> EncoderBatch:
    """Return texts as one batch, each cut to at most ``length`` tokens."""
    rows = TextTokenizer(tokenizer, length).ids(texts)
    (batch,) = padded_batches(config, rows, len(rows))
    return batch
