"""File formats for tensors, one module each. None of them unpickles anything.

To add a format, write a module with ``read`` and ``write``, and list it here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from triglot.shared import pickles
from triglot.shared.arrays import Array
from triglot.shared.errors import PortingError

from . import msgpack, npz, paddle, safetensors, shards, torch
from . import zip as zip_file


class Container(Protocol):
    """A file format."""

    def read(self, path: Path) -> dict[str, Array]:
        """Return the tensors of a file by name, as views of the mapped file, or raise ``PortingError``."""
        ...

    def write(self, file: BinaryIO, tensors: Mapping[str, Array]) -> None:
        """Write tensors to an open file."""


BY_SUFFIX: dict[str, Container] = {
    **dict.fromkeys((".pt", ".pth", ".bin"), torch),
    ".safetensors": safetensors,
    ".pdparams": paddle,
    ".msgpack": msgpack,
    ".npz": npz,
}
SUFFIXES = " or ".join((", ".join([*BY_SUFFIX][:-1]), [*BY_SUFFIX][-1]))  # for messages


def find(path: Path) -> Container:
    """Return the format of a file, or of the first file that an index lists.

    Its content decides, and its suffix where the content is damaged.

    Raises:
        PortingError: the file is unreadable, or its format is unknown.
    """
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
