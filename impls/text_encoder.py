"""Text to vectors: a model that embeds sentences, with its tokenizer."""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from triglot import impls, shared
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.environment import hash_of_code, threads, variables, version
from triglot.shared.errors import InputError
from triglot.shared.inputs.encoder import padded_batches
from triglot.shared.inputs.tokenizer import TextTokenizer

WINDOW = 1024  # texts that are sorted by length and divided into batches
BATCH_TOKENS = 4096

# The distributions of each framework whose versions decide the vectors.
_VERSIONS = {"torch": ("torch",), "paddle": ("paddlepaddle",), "jax": ("jax", "jaxlib", "flax"), "numpy": ("numpy",)}


class TextEncoder:
    """Turns texts into vectors. ``triglot.Embedder`` is a subclass that also finds the model.

    ``checkpoint`` has the head "sentence_embedding". ``tokenizer``: a file ``tokenizer.json``. ``framework``, ``mode``,
    ``dtype`` and ``device`` are those of ``impls.build``. ``batch_tokens``: the most tokens in a batch, padding
    included.

    Raises:
        InputError: the tokenizer cannot be read, or the package ``tokenizers`` is not installed.
        FrameworkError: the framework is not installed, or does not support the device, dtype or mode.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: Path,
        framework: str,
        *,
        mode: str = "compiled",
        dtype: str = "float32",
        device: str = "cpu",
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        self._tokenizer_file = tokenizer
        self.config, self._text, self._digest = checkpoint.config, checkpoint.text, checkpoint.digest
        max_tokens = self.config.source_max_length if self._text is None else self._text.max_tokens
        self._tokenizer = TextTokenizer(tokenizer, max_tokens)
        self._running = {"framework": framework, "mode": mode, "dtype": dtype, "device": device}
        self._model = impls.build(framework, checkpoint, mode=mode, dtype=dtype, device=device)
        self._batch_tokens = batch_tokens

    def settings(self, prompt: str | None = None) -> dict[str, Any]:
        """Return what decides the vectors, in JSON types: the model, its tokenizer, how it runs, and the code.

        ``threads`` is the number that frameworks were told to use: see ``limit_threads``.
        """
        packages = (*_VERSIONS[self._running["framework"]], "tokenizers")
        return {
            "model": self._digest,
            "config": self.config.to_dict(),
            "text": self._text.to_dict() if self._text else None,
            "tokenizer": hashlib.sha256(self._tokenizer_file.read_bytes()).hexdigest(),
            "prompt": self.prompt(prompt),
            "batch_tokens": self._batch_tokens,
            **self._running,
            "versions": {name: version(name) for name in packages},
            "variables": variables(),
            "code of Triglot": hash_of_code((impls, shared)),
            "threads": threads(),
        }

    @property
    def size(self) -> int:
        """The size of a vector."""
        return self.config.sentence_sizes[-1]

    def encode(self, texts: Iterable[str], *, prompt: str | None = None, show_progress: bool = False) -> Array:
        """Return one vector for each text, float32 (texts, size), in the order of the texts.

        ``prompt``: the name of a prompt of the model, which is put before each text. None: the model's default, if it
        has one. ``show_progress``: show a progress bar on a terminal.

        Raises:
            InputError: an element of ``texts`` is not a str, or the model has no prompt of this name.
        """
        from triglot.shared.console import progress  # noqa: PLC0415 (Rich takes a while to import)

        total = len(texts) if isinstance(texts, Sequence) else 0
        vectors = [np.empty((0, self.size), np.float32)]
        with progress("encode", quiet=not show_progress) as on_progress:
            done = 0
            for window in self.stream(texts, prompt=prompt):
                vectors.append(window)
                done += len(window)
                if on_progress:
                    on_progress(done, total or done, "")
        return np.concatenate(vectors)

    def stream(self, texts: Iterable[str], *, prompt: str | None = None) -> Iterator[Array]:
        """Yield the vectors of ``encode`` in several arrays, each as soon as it is computed.

        However many texts there are, only a few thousand are in memory.

        Raises:
            InputError: see ``encode``.
        """
        windows = _windows(texts, self.prompt(prompt))
        with ThreadPoolExecutor(1) as pool:
            tokenized = pool.submit(self._tokenizer.ids, next(windows))
            for window in windows:
                rows = tokenized.result()
                tokenized = pool.submit(self._tokenizer.ids, window)  # while the model computes
                yield self._vectors(rows)
            yield self._vectors(tokenized.result())

    @staticmethod
    def can_continue_after(number: int) -> bool:
        """Return whether an interrupted run can continue after its first ``number`` texts.

        After other numbers, the remaining texts would share other batches than in a run without interruption, and the
        last bits of their vectors could differ.
        """
        return number % WINDOW == 0

    def prompt(self, name: str | None) -> str:
        """Return the text of a prompt of the model; None: of its default prompt.

        Raises:
            InputError: the model has no prompt of this name.
        """
        prompts = self._text.prompts if self._text else {}
        if name is None and self._text is not None:
            name = self._text.default_prompt
        if name is None:
            return ""
        if name not in prompts:
            known = f"one of {', '.join(map(repr, prompts))}" if prompts else "no prompt, because the model has none"
            raise InputError(f"prompt is {name!r}; expected {known}")
        return prompts[name]

    def _vectors(self, rows: Sequence[Sequence[int]]) -> Array:
        """Return the vectors of tokenized texts."""
        vectors = np.zeros((len(rows), self.size), np.float32)
        for places in _batches([len(row) for row in rows], self._batch_tokens):
            (batch,) = padded_batches(self.config, [rows[place] for place in places], len(places))
            vectors[places] = self._model.heads(batch.source, batch.valid)["sentence_embedding"]
        return vectors


def _windows(texts: Iterable[str], prompt: str) -> Iterator[list[str]]:
    """Yield the texts with their prompt, ``WINDOW`` at a time; at least one window, which may be empty.

    Raises:
        InputError: an element of ``texts`` is not a str.
    """
    if isinstance(texts, str):
        raise InputError(f"texts is a single text, {texts!r:.80}; expected a list of texts")
    if not isinstance(texts, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"texts is {texts!r:.80}; expected a list of texts")
    numbered = enumerate(texts)
    window = [_checked(number, text, prompt) for number, text in islice(numbered, WINDOW)]
    yield window
    while window := [_checked(number, text, prompt) for number, text in islice(numbered, WINDOW)]:
        yield window


def _checked(number: int, text: str, prompt: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"text {number} is a {type(text).__name__}; expected a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"text {number} is not Unicode: {error}; remove its lone surrogates") from error
    return prompt + text


def _batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Return the places of rows of these lengths, longest first, in batches of at most ``batch_tokens`` tokens.

    Padding counts too. The batches are as few as possible, and the largest is as small as possible, so the last one is
    rarely a small remainder. A small batch takes longer per token, and frameworks prepare and keep kernels for each new
    size. Each batch has at least one row, even if that row exceeds the limit. Rows without tokens are left out.
    """
    order = sorted((place for place, length in enumerate(lengths) if length), key=lambda place: -lengths[place])

    def divided(limit: int) -> list[list[int]]:
        batches = []
        start = 0
        while start < len(order):
            rows = max(1, limit // lengths[order[start]])
            batches.append(order[start : start + rows])
            start += rows
        return batches

    largest = min(batch_tokens, len(order) * max(lengths, default=0))  # enough for all rows
    fewest = len(divided(largest))
    # Bisection finds the smallest limit that needs no more batches, because a smaller limit never needs fewer.
    return divided(bisect_left(range(largest), -fewest, key=lambda limit: -len(divided(limit))))
