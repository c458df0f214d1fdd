"""File formats for tensors, one module each. None of them unpickles anything.

To add a format, write a module with ``read`` and ``write``, and list it here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from triglot.shared.arrays import Array

from . import npz, safetensors, torch


class Container(Protocol):
    """A file format."""

    def read(self, path: Path) -> dict[str, Array]:
        """Return the tensors of a file by name, or raise ``PortingError``."""
        ...

    def write(self, file: BinaryIO, tensors: Mapping[str, Array]) -> None:
        """Write tensors to an open file."""


BY_SUFFIX: dict[str, Container] = {".pt": torch, ".pth": torch, ".npz": npz, ".safetensors": safetensors}
SUFFIXES = " or ".join((", ".join([*BY_SUFFIX][:-1]), [*BY_SUFFIX][-1]))  # for messages
