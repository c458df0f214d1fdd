"""Files that appear whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from .errors import OutputError


@contextlib.contextmanager
def writing(path: Path) -> Generator[BinaryIO]:
    """A file that appears under ``path`` only when all of it is written and synced.

    Raises:
        OutputError: the target cannot be written; an old file of that name is unharmed.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # A pipe or a device, /dev/stdout say: there is nothing to replace.
            file, temporary = path.open("wb"), None
        else:
            path = path.resolve()  # a link stays a link
            descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name[:200]}.", suffix=".part", dir=path.parent)
            file = os.fdopen(descriptor, "w+b")
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OutputError(f"cannot write {path}: {reason}; choose a writable folder") from error
    try:
        with file:
            yield file
            if temporary is not None:
                file.flush()
                os.fsync(file.fileno())
        if temporary is not None:
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
            sync(path.parent)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; free space or choose another folder") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def check_target(path: Path) -> None:
    """Find out, before any work is done, whether a file can be written to ``path``.

    Raises:
        OutputError: it is a folder, or its folder does not exist or cannot be written.
    """
    if os.path.isdir(path):
        raise OutputError(f"cannot write {path}: it is a folder; give the name of a file")
    _check_parent(path)


def check_folder(path: Path) -> None:
    """Find out whether a folder can be made at ``path``; one that is empty is replaced.

    Raises:
        OutputError: something is there already, or its parent does not exist or cannot be written.
    """
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise OutputError(f"cannot write {path}: it exists and would be lost; remove it or choose another folder")
    _check_parent(path)


def _check_parent(path: Path) -> None:
    if os.path.lexists(path.parent) and not os.path.isdir(path.parent):
        raise OutputError(f"cannot write {path}: {path.parent} is no folder; choose another one")
    if not os.path.isdir(path.parent):
        raise OutputError(f"cannot write {path}: the folder {path.parent} does not exist; create it")
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


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
