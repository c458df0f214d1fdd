"""File formats for tensors, one module each. None of them unpickles anything.

To add a format, write a module with ``read`` and ``write``, and list it here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from triglot.shared.arrays import Array

from . import npz, safetensors, torch


@dataclass(frozen=True)
class Container:
    """A file format.

    ``read`` returns the tensors of a file by name and raises ``PortingError`` if it cannot. ``write`` writes tensors to
    an open file.
    """

    suffixes: tuple[str, ...]
    read: Callable[[Path], dict[str, Array]]
    write: Callable[[BinaryIO, Mapping[str, Array]], None]


NPZ = Container((".npz",), npz.read, npz.write)
SAFETENSORS = Container((".safetensors",), safetensors.read, safetensors.write)
TORCH = Container((".pt", ".pth"), torch.read, torch.write)

BY_SUFFIX = {suffix: container for container in (TORCH, NPZ, SAFETENSORS) for suffix in container.suffixes}
SUFFIXES = " or ".join((", ".join([*BY_SUFFIX][:-1]), [*BY_SUFFIX][-1]))  # for messages
