"""Files that appear whole or not at all."""

import contextlib
import os
import secrets
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from .errors import OutputError

_LONGEST_NAME = 255  # on every usual file system


@contextlib.contextmanager
def writing(path: Path) -> Generator[BinaryIO]:
    """A file that appears under ``path`` only when all of it is written and synced.

    Raises:
        OutputError: the target cannot be written; an old file of that name is unharmed.
    """
    hidden: Path | None = None
    try:
        if replaced := not path.exists() or path.is_file() or path.is_dir():
            path = path.resolve()  # a link stays a link
            file, hidden = _draft(path)
        else:
            # A pipe or a device, /dev/stdout say: there is nothing to replace.
            file = path.open("wb")
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OutputError(f"cannot write {path}: {reason}; choose a writable folder") from error
    try:
        with file:
            yield file
            if replaced:
                file.flush()
                os.fsync(file.fileno())
                if hidden is None:
                    hidden = _give_name(file, path)
        if hidden is not None:
            os.replace(hidden, path)
            sync(path.parent)
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"cannot write {path}: {reason}; free space or choose another folder") from error
    finally:
        if hidden is not None:
            hidden.unlink(missing_ok=True)


def _draft(target: Path) -> tuple[BinaryIO, Path | None]:
    """A new file in the folder of ``target``, and its name: None on Linux, where a file can do without.

    Of a process that is killed, a file without a name leaves nothing behind. It has to get one before it can replace
    another, so whether that works here is tried with a second file.
    """
    with contextlib.suppress(OSError, AttributeError):  # another system, or a file system that cannot do it
        with _unnamed(target.parent) as trial:
            _give_name(trial, target).unlink()
        return _unnamed(target.parent), None
    hidden = _hidden(target)
    return hidden.open("x+b"), hidden


def _unnamed(folder: Path) -> BinaryIO:
    return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666), "w+b")


def _give_name(file: BinaryIO, target: Path) -> Path:
    hidden = _hidden(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # With a folder given, Python follows the link in /proc to the file itself.
        os.link(f"/proc/self/fd/{file.fileno()}", hidden.name, dst_dir_fd=folder)
    finally:
        os.close(folder)
    return hidden


def _hidden(target: Path) -> Path:
    start = target.name.encode(errors="ignore")[:200].decode(errors="ignore")  # names have at most 255 bytes
    return target.with_name(f".{start}.{secrets.token_hex(4)}.part")


def check_target(path: Path) -> None:
    """Find out, before any work is done, whether a file can be written to ``path``.

    Raises:
        OutputError: it is a folder, or its folder does not exist or cannot be written.
    """
    if os.path.isdir(path):
        raise OutputError(f"cannot write {path}: it is a folder; give the name of a file")
    if os.path.exists(path) and not os.path.isfile(path):
        return  # a pipe or a device: nothing is replaced, so its folder is no matter
    _check_parent(path)


def check_folder(path: Path) -> None:
    """Find out whether a folder can be made at ``path``; one that is empty is replaced.

    Raises:
        OutputError: something is there already, or its parent does not exist or cannot be written.
    """
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)):
        raise OutputError(f"cannot write {path}: it exists and would be lost; remove it or choose another folder")
    _check_parent(path)


def _check_parent(path: Path) -> None:
    if os.path.lexists(path.parent) and not os.path.isdir(path.parent):
        raise OutputError(f"cannot write {path}: {path.parent} is no folder; choose another one")
    if not os.path.isdir(path.parent):
        raise OutputError(f"cannot write {path}: the folder {path.parent} does not exist; create it")
    try:
        length = len(os.fsencode(path.name))
    except UnicodeEncodeError as error:
        raise OutputError(f"cannot write {str(path)!r}: no file can have that name; choose another one") from error
    if length > _LONGEST_NAME:
        raise OutputError(f"cannot write {path}: a name has at most {_LONGEST_NAME} bytes; choose a shorter one")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"cannot write {path}: the folder {path.parent} is not writable; choose another one")


def sync(*paths: Path) -> None:
    """Make sure that what was written to these files and folders is on the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
