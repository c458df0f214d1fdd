"""The toy translation task of article 000: digits and lower-case letters to a language that reverses them.

    q w e 1   ->   8 8 E W Q

Letters become capitals, a digit d becomes 9 - d, the sentence is reversed, and its first symbol is doubled. NumPy draws
the sentences, so every framework trains on the same ones.

Shapes: N samples, L the longest source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from triglot.shared.arrays import Array, Int32s
from triglot.shared.errors import TaskError
from triglot.shared.model.config import ModelConfig

WORDS = tuple("0123456789qwertyuiopasdfghjklzxcvbnm")  # the letters in keyboard order
SOURCE_VOCABULARY = ("<SOS>", "<EOS>", "<PAD>", *WORDS)
TARGET_VOCABULARY = tuple(symbol.upper() for symbol in SOURCE_VOCABULARY)
START_ID, END_ID, PAD_ID = range(3)

# The relative frequency of each word: digits and letters by their place in the vocabulary.
WEIGHTS = (*range(1, 11), *range(1, 27))

_SHORTEST = 5  # the shortest length of a source: a start, three words, an end
_CHANCES = np.array(WEIGHTS) / sum(WEIGHTS)
_ID_OF_WORD = {word: id_ for id_, word in enumerate(SOURCE_VOCABULARY)}
_ID_OF_TRANSLATION = {word: id_ for id_, word in enumerate(TARGET_VOCABULARY)}


@dataclass(frozen=True)
class Score:
    """The share of generated tokens that are right, and the share of sequences without any mistake."""

    tokens: float
    sequences: float


class TranslationTask:
    """A stream of pairs of source and target ids. Sample i of a seed is always the same, whatever was drawn before it.

    ``length`` L is the length of the source ids with start, end and padding; targets have the length L + 1. A sentence
    has 3 L // 5 to L - 2 words: 30 to 48 at article 000's length of 50.

    Raises:
        TaskError: ``seed`` is negative, or ``length`` is below 5.
    """

    def __init__(self, seed: int = 0, length: int = 50) -> None:
        if seed < 0:
            raise TaskError(f"the seed of the translation task is {seed}; expected 0 or more")
        if length < _SHORTEST:
            raise TaskError(f"the length of the translation task is {length}; expected {_SHORTEST} or more")
        self.seed = seed
        self.length = length

    @classmethod
    def for_model(cls, config: ModelConfig, seed: int = 0) -> TranslationTask:
        """Return the task at the length that the model of ``config`` reads.

        Raises:
            TaskError: the model cannot learn it; the message has the field, its value and what was expected.
        """
        exact = {"kind": "encoder_decoder", "start_id": START_ID, "end_id": END_ID, "pad_id": PAD_ID}
        for field, value in exact.items():
            if getattr(config, field) != value:
                raise _unfit(field, getattr(config, field), repr(value))
        least = {
            "source_vocabulary": len(SOURCE_VOCABULARY),
            "target_vocabulary": len(TARGET_VOCABULARY),
            "source_max_length": _SHORTEST,
            "target_max_length": config.source_max_length,  # of the L + 1 ids the decoder reads all but the last
        }
        for field, value in least.items():
            if getattr(config, field) < value:
                raise _unfit(field, getattr(config, field), f"{value} or more")
        return cls(seed, config.source_max_length)

    def pairs(self, start: int, count: int) -> tuple[Int32s, Int32s]:
        """Return samples ``start`` to ``start + count - 1``: source ids (N, L) and target ids (N, L + 1).

        Raises:
            TaskError: ``start`` or ``count`` is negative.
        """
        if start < 0 or count < 0:
            raise TaskError(f"asked for {count} samples from {start} on; expected 0 or more of both")
        sources = np.full((count, self.length), PAD_ID, np.int32)
        targets = np.full((count, self.length + 1), PAD_ID, np.int32)
        for row in range(count):
            words = self._draw(start + row)
            _fill(sources[row], [_ID_OF_WORD[word] for word in words])
            _fill(targets[row], [_ID_OF_TRANSLATION[word] for word in translate(words)])
        return sources, targets

    def source_ids(self, words: Sequence[str]) -> Int32s:
        """Return words as source ids (1, L).

        Raises:
            TaskError: see ``read``.
        """
        self._check(words)
        row = np.full((1, self.length), PAD_ID, np.int32)
        _fill(row[0], [_ID_OF_WORD[word] for word in words])
        return row

    def read(self, text: str) -> list[str]:
        """Return the words of ``text``, with or without spaces: "q w e 1" or "qwe1".

        Raises:
            TaskError: there are no words, or more than L - 2, or a word that the language does not have.
        """
        words = [symbol for symbol in text if not symbol.isspace()]
        self._check(words)
        return words

    def _check(self, words: Sequence[str]) -> None:
        if unknown := dict.fromkeys(word for word in words if word not in WORDS):
            shown = ", ".join(map(repr, unknown))
            raise TaskError(f"the text holds {shown}; expected the digits 0 to 9 and the lower-case letters a to z")
        if not words:
            raise TaskError("the text is empty; expected digits and lower-case letters, such as 'q w e 1'")
        if len(words) > self.length - 2:
            raise TaskError(f"the text has {len(words)} words; expected at most {self.length - 2}, so cut it")

    def _draw(self, index: int) -> list[str]:
        generator = np.random.default_rng([self.seed, index])
        count = int(generator.integers(3 * self.length // 5, self.length - 2, endpoint=True))
        return [WORDS[place] for place in generator.choice(len(WORDS), count, p=_CHANCES)]


def translate(words: Sequence[str]) -> list[str]:
    """Return the right translation of words, without start and end."""
    translated = [str(9 - int(word)) if word.isdigit() else word.upper() for word in reversed(words)]
    return translated[:1] + translated


def write(ids: Iterable[int]) -> str:
    """Return generated target ids as text, from after the start id up to the end id.

    The mistakes of a poor model stay visible: a <PAD> among the words, and <40> for an id that is not in the language.
    """
    words: list[str] = []
    for place, id_ in enumerate(ids):
        if id_ == END_ID:
            break
        if place or id_ != START_ID:
            words.append(TARGET_VOCABULARY[id_] if 0 <= id_ < len(TARGET_VOCABULARY) else f"<{id_}>")
    return " ".join(words)


def score(generated_ids: Array, target_ids: Array) -> Score:
    """Return how much of ``generated_ids`` is right, over the real tokens of ``target_ids`` after the start.

    Both are (N, T) and begin with the start id. T may differ: a token that was not generated is wrong, and tokens after
    the end of the target do not count.

    Raises:
        TaskError: the shapes are not (N, T) with the same N, or there is no token to compare.
    """
    if generated_ids.ndim != 2 or target_ids.ndim != 2 or len(generated_ids) != len(target_ids):
        raise TaskError(
            f"the generated ids are {generated_ids.shape}, the target ids {target_ids.shape}; expected (N, T) of both"
        )
    counted = target_ids[:, 1:] != PAD_ID
    if not counted.any():
        raise TaskError(f"the target ids {target_ids.shape} hold no token after the start; expected at least one")
    right = np.zeros(target_ids.shape, np.bool_)
    length = min(generated_ids.shape[1], target_ids.shape[1])
    right[:, :length] = generated_ids[:, :length] == target_ids[:, :length]
    right = right[:, 1:]
    return Score(float(right[counted].mean()), float((right | ~counted).all(axis=1).mean()))


def _fill(row: Int32s, words: Sequence[int]) -> None:
    """Write start, words and end into a row of padding. They fit: L - 2 words in L, and one more in L + 1."""
    row[: len(words) + 2] = [START_ID, *words, END_ID]


def _unfit(field: str, got: object, expected: str) -> TaskError:
    return TaskError(
        f"a model with {field} {got!r} cannot learn the translation task; expected {expected}; "
        "use the recipe translation or translation-tiny"
    )
