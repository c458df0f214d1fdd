"""What a command writes: tables for a reader, JSON for a program, and no file in the place of another."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triglot.shared import files
from triglot.shared.errors import OutputError

PRINTED = Path("-")  # in the place of a file: standard output


def show(print_table: Callable[..., object], *content: object) -> None:
    """Print; a reader who has seen enough, ``head`` say, changes neither the result nor the exit code."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        return  # it was closed before the start
    try:
        print_table(*content)
        sys.stdout.flush()
    except OSError as error:
        # Let nothing complain again while Python shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"cannot write to standard output: {error.strerror}; free space") from error


def check_apart(*targets: Path | None) -> None:
    """Refuse targets of which one would replace the other."""
    seen: set[str] = set()
    for path in targets:
        if path is not None:
            if os.path.realpath(path) in seen:
                raise OutputError(f"{path} is to be written twice; choose another file for one of the two")
            seen.add(os.path.realpath(path))


def check_target(path: Path | None, *sources: str | Path | None) -> None:
    """Refuse a target that cannot be written, or that would replace what is read, before the work, not after it."""
    if path is None or path == PRINTED:
        return
    files.check_target(path)
    for source in sources:
        if source is not None and os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
            raise OutputError(f"cannot write {path}: it is read as well, and would be lost; choose another file")


def check_file(path: Path | None, *sources: str | Path | None) -> None:
    """The same for what cannot be printed."""
    if path == PRINTED:
        raise OutputError("only JSON can be printed (-); name a file")
    check_target(path, *sources)


def shows_tables(json_file: Path | None, *, quiet: bool) -> bool:
    """Whether standard output is a reader's: nobody asked for quiet, and no JSON stands there."""
    return not quiet and json_file != PRINTED


def write_json(path: Path | None, content: dict[str, Any], *, more: bool = False) -> None:
    """Write ``content`` as JSON, all of it or nothing, if a file was asked for.

    ``more``: the same will be written again with more in it, so what cannot be replaced, as a pipe, waits for that.
    """
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    if path == PRINTED:
        if not more:
            show(sys.stdout.write, text)
    elif path is not None and not (more and path.exists() and not path.is_file()):
        with files.writing(path) as file:
            file.write(text.encode())
