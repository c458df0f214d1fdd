"""State dicts in ``.npz`` files, as ``numpy.savez(path, **state_dict)`` writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from triglot.shared import pickles
from triglot.shared.arrays import BFLOAT16, Array
from triglot.shared.checkpoint import npy, npz
from triglot.shared.checkpoint.checksums import without_verifying
from triglot.shared.errors import PortingError

from . import zip as zip_file

_REMEDY = "save the state dict with numpy.savez"


def read(path: Path) -> dict[str, Array]:
    """Return the arrays by name, in C or Fortran order.

    Raises:
        PortingError: the file is damaged, or a member is anything but an array of numbers.
    """
    members = zip_file.read(path)
    for name in members:
        if not name.endswith(".npy"):
            raise PortingError(f"cannot read {path}: {name} is not an array; {_REMEDY}")
    return {name.removesuffix(".npy"): _array(path, name, content) for name, content in members.items()}


def write(file: BinaryIO, tensors: Mapping[str, Array]) -> None:
    """Write a file that ``numpy.load`` reads, with one array in memory at a time.

    Raises:
        PortingError: ``check`` refuses a tensor.
    """
    check(tensors)
    with npz.Writer(file) as writer:
        for name, tensor in tensors.items():
            writer.write_array(name, tensor)


def check(tensors: Mapping[str, Array]) -> None:
    """Check, without reading them, that a file can hold these tensors.

    Raises:
        PortingError: one is bfloat16, which NumPy does not have.
    """
    for name, tensor in without_verifying(tensors).items():
        if tensor.dtype == BFLOAT16:
            raise PortingError(f"{name} is bfloat16, which NumPy does not have; write .pt or .safetensors")


def _array(path: Path, name: str, content: memoryview) -> Array:
    start = bytes(content[: npy.LONGEST_HEADER])
    if pickles.is_pickle(start) or npy.is_pickled(start):
        raise PortingError(f"cannot read {path}: {name} is a pickle; {pickles.WHY}")
    try:
        header = npy.parse_header(start)
        if header.size != len(content):
            raise ValueError("does not have the size that its header states")
        numbers = np.frombuffer(content, header.dtype, offset=header.end)
        shaped = numbers.reshape(header.shape, order="F" if header.fortran_order else "C")
        return np.require(shaped, requirements="A")  # numpy.savez does not align its members
    except ValueError as error:
        raise PortingError(f"cannot read {path}: {name} {error}; {_REMEDY}") from error
