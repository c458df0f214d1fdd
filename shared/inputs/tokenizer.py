"""The tokenizer of a model, read from its ``tokenizer.json`` by the package ``tokenizers``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triglot.shared.errors import InputError


class TextTokenizer:
    """Turns texts into token ids, special tokens included, each text cut to at most ``max_tokens``.

    Raises:
        InputError: the file cannot be read, or the package ``tokenizers`` is not installed.
    """

    def __init__(self, path: Path, max_tokens: int) -> None:
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415 (an optional dependency)
        except ImportError as error:
            raise InputError("real text needs the package tokenizers; install triglot[text]") from error
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise InputError(f"cannot read the tokenizer {path}: {error}; restore the file or remove it") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]  # fast: without offsets
