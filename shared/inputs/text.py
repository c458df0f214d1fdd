"""Batches of real English: sentences of the Python manual, tokenized by the model's own tokenizer."""

import re
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from triglot.shared.model.config import ModelConfig

from .batch import EncoderBatch
from .encoder import padded_batches
from .tokenizer import TextTokenizer

_SENTENCE = re.compile(r"[A-Z][^.!?]+[.!?](?=\s)")
# Longer texts are lists, texts with a bar are tables, and texts of fewer words are fragments.
_LONGEST = 300
_FEWEST_SPACES = 3


def sentences(count: int) -> list[str]:
    """Return ``count`` sentences of very different lengths from the whole manual, the same on every call.

    They are spread evenly over the manual's sentences sorted by length, from the shortest to the longest, and then
    shuffled, so that each batch has padding.
    """
    texts: set[str] = set()
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            if not paragraph.startswith(" "):  # indented paragraphs are code and tables
                texts.update(" ".join(match.split()) for match in _SENTENCE.findall(paragraph + "\n"))
    prose = [text for text in texts if len(text) <= _LONGEST and "|" not in text and text.count(" ") >= _FEWEST_SPACES]
    ordered = sorted(prose, key=lambda sentence: (len(sentence), sentence))
    places = np.linspace(0, len(ordered) - 1, count).round().astype(int)
    shuffled = np.random.default_rng(0).permutation(places)
    return [ordered[int(place)] for place in shuffled]


def text_batches(config: ModelConfig, tokenizer_file: Path, count: int, batch_size: int) -> list[EncoderBatch]:
    """Return ``count`` sentences as batches for a model of ``config``, all padded to the longest sentence.

    Raises:
        InputError: the tokenizer cannot be read, or the ``tokenizers`` package is not installed.
    """
    rows = TextTokenizer(tokenizer_file, config.source_max_length).ids(sentences(count))
    return padded_batches(config, rows, batch_size, max(map(len, rows)))
