"""State dicts in ``.npz`` files, as plain ``numpy.savez(path, **state_dict)`` writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from triglot.shared import pickles
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import npz
from triglot.shared.dtypes import BFLOAT16
from triglot.shared.errors import PortingError

from . import zip as zip_file


def read(path: Path) -> dict[str, Array]:
    """The arrays by name, whatever their order in memory; read-only.

    Raises:
        PortingError: the file is damaged, holds anything else than arrays of numbers, or a pickle.
    """
    members = zip_file.read(path)
    for name in members:
        if not name.endswith(".npy"):
            raise PortingError(f"cannot read {path}: {name} is no array; save the state dict with numpy.savez")
    return {name.removesuffix(".npy"): _array(path, name, content) for name, content in members.items()}


def write(file: BinaryIO, tensors: Mapping[str, Array]) -> None:
    """Write a file that ``numpy.load`` reads.

    Raises:
        PortingError: a tensor is bfloat16, which NumPy does not have.
    """
    for name, tensor in tensors.items():
        if tensor.dtype == BFLOAT16:
            raise PortingError(f"{name} is bfloat16, which NumPy does not have; write .pt or .safetensors")
    np.savez(file, allow_pickle=False, **tensors)


def _array(path: Path, name: str, content: bytes) -> Array:
    start = content[: npz.LONGEST_HEADER]
    if pickles.is_pickle(start) or npz.PICKLED_ARRAY.match(start):
        raise PortingError(f"cannot read {path}: {name} is a pickle; {pickles.WHY}")
    try:
        header = npz.header(start)
        if header.size != len(content):
            raise ValueError("does not have the size that its header states")
        numbers = np.frombuffer(content, header.dtype, offset=header.end)
        return numbers.reshape(header.shape, order="F" if header.fortran_order else "C")
    except ValueError as error:
        raise PortingError(f"cannot read {path}: {name} {error}; save the state dict with numpy.savez") from error
