"""What a command writes: tables for people, JSON for programs. No output file may overwrite an input."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triglot.shared import files
from triglot.shared.errors import OutputError

PRINTED = Path("-")  # --json -: write to standard output


def show(print_table: Callable[..., object], *content: object) -> None:
    """Print to standard output. A reader that closes it early, such as ``head``, does not change the exit code."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        return  # closed before the start
    try:
        print_table(*content)
        sys.stdout.flush()
    except OSError as error:
        # Python flushes standard output once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"cannot write to standard output: {error.strerror}; free space") from error


def check_apart(*targets: Path | None) -> None:
    """Refuse two targets that are the same file.

    Raises:
        OutputError: one of ``targets`` would overwrite another.
    """
    resolved: set[str] = set()
    for path in targets:
        if path is not None:
            if os.path.realpath(path) in resolved:
                raise OutputError(f"{path} would be written twice; choose different files")
            resolved.add(os.path.realpath(path))


def check_output(path: Path | None, *sources: str | Path | None) -> None:
    """Refuse, before the work, a target that cannot be written or that would overwrite one of ``sources``.

    Raises:
        OutputError: ``path`` is such a target.
    """
    if path is None or path == PRINTED:
        return
    files.check_writable(path)
    check_not_input(path, *sources)


def check_not_input(path: Path, *sources: str | Path | None, inside: bool = True) -> None:
    """Refuse a target that is the same file as one of ``sources`` or, if ``inside``, an existing one in such a folder.

    Raises:
        OutputError: it is.
    """
    for source in sources:
        if source is None or not os.path.exists(path) or not os.path.exists(source):
            continue
        # The files of a folder, and those that an index lists, are all beside each other.
        beside = os.path.realpath(source) if os.path.isdir(source) else os.path.dirname(os.path.realpath(source))
        is_part = inside and (os.path.isdir(source) or str(source).endswith(".index.json"))
        in_folder = is_part and os.path.isfile(path) and os.path.realpath(path).startswith(os.path.join(beside, ""))
        if os.path.samefile(path, source) or in_folder:
            raise OutputError(f"cannot write {path}: it is also an input and would be lost; choose another file")


def check_outside(path: Path, source: str) -> None:
    """Refuse a target inside the folder ``source``, and a target that contains ``source``.

    Raises:
        OutputError: it is such a target.
    """
    if not os.path.exists(source):
        return  # a recipe
    target, origin = Path(os.path.realpath(path)), Path(os.path.realpath(source))
    if os.path.isdir(source) and target.is_relative_to(origin):
        raise OutputError(f"cannot write {path}: it is inside the source {source}; choose a path outside it")
    if origin.is_relative_to(target):
        raise OutputError(f"cannot write {path}: it contains the source {source}; choose another path")


def check_file(path: Path | None, *sources: str | Path | None) -> None:
    """Like ``check_output``, for formats that cannot go to standard output."""
    if path == PRINTED:
        raise OutputError("only JSON can be printed (-); name a file")
    check_output(path, *sources)


def shows_tables(json_file: Path | None, *, quiet: bool) -> bool:
    """Whether tables go to standard output: not with --quiet, and not when the JSON is printed."""
    return not quiet and json_file != PRINTED


def write_json(path: Path | None, content: dict[str, Any], *, more: bool = False) -> None:
    """Write ``content`` as JSON, completely or not at all, if ``path`` is given.

    ``more`` says that a later call will write the same content and more. A target that cannot be overwritten, such as
    a pipe, is then left for the last call.
    """
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    if path == PRINTED:
        if not more:
            show(sys.stdout.write, text)
    elif path is not None and not (more and path.exists() and not path.is_file()):
        with files.writing(path) as file:
            file.write(text.encode())
