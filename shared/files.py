"""Files that are written completely or not at all, and files that are mapped into memory instead of read."""

import contextlib
import errno
import mmap
import os
import secrets
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, BinaryIO

from .errors import OutputError, TriglotError

_LONGEST_NAME = 255  # on every usual file system

# Linux counts a private mapping as memory that may be needed, and refuses one that is larger than the machine's
# memory, so a large file could not be opened. With MAP_NORESERVE only the pages that are written to count.
_MAP_NORESERVE = 0x4000
_PRIVATE: dict[str, Any] = (
    {"flags": mmap.MAP_PRIVATE | _MAP_NORESERVE, "prot": mmap.PROT_READ | mmap.PROT_WRITE}
    if sys.platform == "linux"
    else {"access": mmap.ACCESS_COPY}
)
if sys.version_info >= (3, 13):
    _PRIVATE["trackfd"] = False  # a mapping needs no open file
_MANY_FILES = (
    "raise the limit (ulimit -n), use Python 3.13, which does not keep mapped files open, or write fewer shards"
)


def mapped(path: Path) -> mmap.mmap:
    """Map a file. Writing into the mapping changes neither the file nor other mappings.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is empty, or a pipe.
    """
    if path.is_fifo():
        raise ValueError("it is a pipe, which cannot be mapped")  # opening it could block for ever
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ValueError("it is empty")
        try:
            return mmap.mmap(file.fileno(), 0, **_PRIVATE)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise OSError(error.errno, f"{error.strerror} ({_MANY_FILES})") from error


@contextlib.contextmanager
def writing(path: Path) -> Generator[BinaryIO]:
    """Open a file that appears under ``path`` only when it is completely written and synced.

    Raises:
        OutputError: the target cannot be written. An existing file is then unchanged.
    """
    hidden: Path | None = None
    try:
        if replaced := not path.exists() or path.is_file() or path.is_dir():
            path = path.resolve()  # replace the file, not the link to it
            file, hidden = _draft(path)
        else:
            # A pipe or a device such as /dev/stdout cannot be replaced.
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
        raise OutputError(f"cannot write {path}: {reason}; free space, or choose another folder") from error
    finally:
        if hidden is not None:
            hidden.unlink(missing_ok=True)


@contextlib.contextmanager
def writing_folder(path: Path) -> Generator[Path]:
    """Yield a new folder that appears under ``path`` only when everything in it is written and synced.

    A process that is killed leaves the hidden folder behind, whose name ends in ".part". An existing folder is never
    replaced, unless it is empty.

    Raises:
        OutputError: the target exists or cannot be written. Nothing is then left behind.
    """
    path = path.absolute()  # "." has no parent
    check_folder(path)
    try:
        with tempfile.TemporaryDirectory(prefix=".", suffix=".part", dir=path.parent) as temporary:
            folder = Path(temporary) / "content"
            folder.mkdir()
            yield folder
            sync(*folder.rglob("*"), folder)
            os.rename(folder, path)
            sync(path.parent)
    except TriglotError:
        raise
    except (OSError, ValueError) as error:  # ValueError: names that no file can have
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputError(f"cannot write {path}: {reason}; free space, or choose another target") from error


def _draft(target: Path) -> tuple[BinaryIO, Path | None]:
    """Return a new file in the folder of ``target`` and its name, which is None on Linux.

    A file without a name disappears if its process is killed. It must get a name before it can replace another file,
    so a second file first tries whether this file system supports that.
    """
    with contextlib.suppress(OSError, AttributeError):  # not Linux, or an unsupporting file system
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
        # With dst_dir_fd, Python follows the link in /proc to the file itself.
        os.link(f"/proc/self/fd/{file.fileno()}", hidden.name, dst_dir_fd=folder)
    finally:
        os.close(folder)
    return hidden


def _hidden(target: Path) -> Path:
    start = target.name.encode(errors="ignore")[:200].decode(errors="ignore")  # names have at most 255 bytes
    return target.with_name(f".{start}.{secrets.token_hex(4)}.part")


def check_writable(path: Path) -> None:
    """Check, before any work is done, that a file can be written to ``path``.

    Raises:
        OutputError: ``path`` is a folder or read-only, or its folder does not exist or accepts no new file.
    """
    if os.path.isdir(path):
        raise OutputError(f"cannot write {path}: it is a folder; name a file")
    if os.path.exists(path) and not os.path.isfile(path):
        return  # a pipe or a device is written in place, so its folder does not matter
    if os.path.exists(path) and not os.stat(path).st_mode & 0o222:  # a rename would replace it anyway
        raise OutputError(f"cannot write {path}: it is read-only; change its permissions, or choose another file")
    # Writing replaces the file, not a link to it.
    _check_parent(Path(os.path.realpath(path)) if os.path.islink(path) else path)


def check_folder(path: Path) -> None:
    """Check that a folder can be created at ``path``. An empty folder may be replaced.

    Raises:
        OutputError: ``path`` already exists, or its parent does not exist or accepts no new file.
    """
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)):
        raise OutputError(f"cannot write {path}: it already exists; remove it, or choose another folder")
    _check_parent(path)


def _check_parent(path: Path) -> None:
    if os.path.lexists(path.parent) and not os.path.isdir(path.parent):
        raise OutputError(f"cannot write {path}: {path.parent} is not a folder; choose another one")
    if not os.path.isdir(path.parent):
        raise OutputError(f"cannot write {path}: the folder {path.parent} does not exist; create it")
    if "\0" in path.name:
        raise OutputError(f"cannot write {path}: embedded null byte; choose another name")
    try:
        length = len(os.fsencode(path.name))
    except UnicodeEncodeError as error:
        raise OutputError(f"cannot write {str(path)!r}: no file can have that name; choose another one") from error
    if length > _LONGEST_NAME:
        raise OutputError(
            f"cannot write {path}: its name has {length} bytes, expected at most {_LONGEST_NAME}; shorten it"
        )
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"cannot write {path}: the folder {path.parent} is not writable; choose another one")
    try:
        file, hidden = _draft(path.absolute())  # a path such as "." has no name to derive a draft's from
        file.close()
        if hidden is not None:
            hidden.unlink()
    except OSError as error:  # /proc, for example, refuses new files
        raise OutputError(
            f"cannot write {path}: no file can be created in the folder {path.parent} ({error.strerror}); choose "
            "another folder"
        ) from error


def sync(*paths: Path) -> None:
    """Flush these files and folders to the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
