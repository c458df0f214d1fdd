"""Tensors in ``.safetensors`` files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from triglot.shared import pickles
from triglot.shared.arrays import Array
from triglot.shared.errors import PortingError

_DTYPES = (*("F64", "F32", "F16", "BF16"), *("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"))


def read(path: Path) -> dict[str, Array]:
    """Return the tensors by name.

    Raises:
        PortingError: the file is damaged or a pickle, or a tensor has a dtype that NumPy and ``ml_dtypes`` lack.
    """
    tensors: dict[str, Array] = {}
    try:
        with path.open("rb") as file:
            if pickles.is_pickle(file.read(pickles.START)):
                raise PortingError(f"cannot read {path}: it is a pickle; {pickles.WHY}")
        with cast("Any", safe_open(path, framework="numpy")) as file:
            for name in file.keys():  # noqa: SIM118 (``file`` is not a mapping)
                dtype = file.get_slice(name).get_dtype()
                if dtype not in _DTYPES:
                    raise PortingError(
                        f"cannot read {path}: {name} is {dtype}; expected one of {', '.join(_DTYPES)}; save the model "
                        "as float32"
                    )
                tensors[name] = file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise PortingError(f"cannot read {path}: {error}; restore the file") from error
    return tensors


def write(file: BinaryIO, tensors: Mapping[str, Array]) -> None:
    """Write the tensors, for PyTorch to load."""
    # safetensors 0.8.0 writes the memory of a transposed array as if it were in C order.
    ordered = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    file.write(save(ordered, metadata={"format": "pt"}))
