"""File formats for tensors, one module each. None of them unpickles anything.

To add a format, write a module with ``read`` and ``write``, and list it here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from triglot.shared import files, pickles
from triglot.shared.arrays import Array
from triglot.shared.errors import PortingError

from . import msgpack, npz, orbax, paddle, safetensors, shards, torch
from . import zip as zip_file


class Format(Protocol):
    """A format of files or folders."""

    def read(self, path: Path) -> dict[str, Array]:
        """Return the tensors by name, as views of the mapped file where possible, or raise ``PortingError``."""
        ...


class Container(Format, Protocol):
    """A file format."""

    def write(self, file: BinaryIO, tensors: Mapping[str, Array]) -> None:
        """Write tensors to an open file."""


BY_SUFFIX: dict[str, Container] = {
    **dict.fromkeys((".pt", ".pth", ".bin"), torch),
    ".safetensors": safetensors,
    ".pdparams": paddle,
    ".msgpack": msgpack,
    ".npz": npz,
}
SUFFIXES = f"{', '.join(BY_SUFFIX)} or {orbax.SUFFIX}"  # for messages


def check(path: Path, tensors: Mapping[str, Array]) -> None:
    """Check, without reading them, that a file with the suffix of ``path`` can hold these tensors.

    Raises:
        PortingError: it cannot.
    """
    if BY_SUFFIX.get(path.suffix) is npz:
        npz.check(tensors)


def find(path: Path) -> Format:
    """Return the format of a file, of the folder of a checkpoint, or of the first file that an index lists.

    Its content decides, and its suffix where the content is damaged.

    Raises:
        PortingError: the file is unreadable, or its format is unknown.
    """
    if orbax.is_checkpoint(path):
        return orbax
    if path.name.endswith(shards.SUFFIX):
        path = shards.first(path)
    try:
        with path.open("rb") as file:
            start = file.read(pickles.START)
    except OSError as error:
        raise PortingError(f"cannot read {path}: {error.strerror}; restore it, or change its permissions") from error
    if start[:2] == b"PK" and (members := zip_file.names(path)):
        return torch if any(name.endswith(".pkl") for name in members) else npz
    if start[8:9] == b"{":
        return safetensors
    if msgpack.is_map(start) and not pickles.is_pickle(start):
        return msgpack
    if path.suffix in BY_SUFFIX:
        return BY_SUFFIX[path.suffix]
    if pickles.is_pickle(start):
        raise PortingError(f"cannot read {path}: it is a pickle; {pickles.WHY}")
    raise PortingError(f"cannot read {path}: its format is unknown; expected a file {SUFFIXES}, or a folder")


def read(path: Path) -> dict[str, Array]:
    """Return the tensors of a file by name, as views of the mapped file, or those of all files that an index lists.

    Raises:
        PortingError: a file is unreadable or damaged, or its format is unknown.
    """
    if path.name.endswith(shards.SUFFIX):
        return shards.read(path, lambda shard: find(shard).read(shard))
    return find(path).read(path)


def check_target(target: Path) -> None:
    """Check, before any work is done, that tensors can be written to ``target``.

    Raises:
        PortingError: its suffix is unknown.
        OutputError: it cannot be written.
    """
    if target.suffix == orbax.SUFFIX:
        files.check_folder(target)
    elif target.suffix in BY_SUFFIX:
        files.check_writable(target)
    else:
        raise PortingError(f"cannot write {target}: its suffix is {target.suffix!r}, expected {SUFFIXES}; rename it")


def check_folder(target: Path) -> None:
    """Check, before any work is done, that a folder of several files can be written to ``target``.

    Raises:
        PortingError: its suffix is that of a single file.
        OutputError: it cannot be written.
    """
    if target.suffix in BY_SUFFIX:
        raise PortingError(
            f"cannot write {target}: it would become a folder, but {target.suffix} is the suffix of a file; choose a "
            "name without the suffix, or write one file (a dialect such as neutral or torch, without --shard-size)"
        )
    files.check_folder(target)


def write(target: Path, tensors: Mapping[str, Array]) -> None:
    """Write tensors in the format of the suffix of ``target``, completely or not at all.

    Raises:
        PortingError: the format cannot hold a tensor or its name.
        OutputError: the target cannot be written.
    """
    if target.suffix == orbax.SUFFIX:
        orbax.write(target, tensors)
        return
    with files.writing(target) as file:
        BY_SUFFIX[target.suffix].write(file, tensors)
