"""Texts from a file: one on each line, or one in a field of each object of a ``.jsonl`` file."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from triglot.shared.errors import InputError

STANDARD_INPUT = "-"


def read_texts(source: str, field: str) -> Iterator[str]:
    """Yield the texts of a file, or of standard input ("-"). ``field``: the name of the text in a ``.jsonl`` file.

    A line may be empty: it is an empty text.

    Raises:
        InputError: the file cannot be read, or a line is not UTF-8, not such an object, or has a lone surrogate.
    """
    if source == STANDARD_INPUT:
        yield from _lines(sys.stdin.buffer, "standard input")
        return
    try:
        with Path(source).open("rb") as file:
            lines = _lines(file, source)
            yield from (_field(lines, source, field) if is_jsonl(source) else lines)
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror}; name a file with one text a line") from error


def is_jsonl(source: str) -> bool:
    """Return whether each line of a file is an object, by the ending of its name."""
    return Path(source).suffix == ".jsonl"


def count_lines(source: str) -> int:
    """Return how many lines a file has; 0 for standard input and pipes, which can be read only once.

    Raises:
        InputError: the file cannot be read.
    """
    if source == STANDARD_INPUT:
        return 0
    try:
        if not Path(source).exists() or Path(source).is_dir():
            raise InputError(f"{source} is not a file; name a file with one text a line, or - for standard input")
        if not Path(source).is_file():
            return 0
        with Path(source).open("rb") as file:
            return sum(1 for _ in file)
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror}; name a file with one text a line") from error


def _lines(file: BinaryIO, source: str) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        try:
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"line {number} of {source} is not UTF-8: {error.reason}; convert the file") from error


def _field(lines: Iterator[str], source: str, field: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            content: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"line {number} of {source} is not JSON: {error}; correct it") from error
        text = content.get(field) if isinstance(content, dict) else None
        if not isinstance(text, str):
            raise InputError(
                f"line {number} of {source} is {line!r:.80}; expected an object with a text in {field!r}; name the "
                "field with --field"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"line {number} of {source} is not Unicode: {error}; remove its lone surrogates"
            ) from error
        yield text
