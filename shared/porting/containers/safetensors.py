"""Tensors in ``.safetensors`` files."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from safetensors import SafetensorError, safe_open

from triglot.shared import files, pickles
from triglot.shared.arrays import BFLOAT16, Array, in_c_order
from triglot.shared.checkpoint.checksums import without_verifying
from triglot.shared.errors import PortingError

_DTYPES: dict[str, np.dtype[Any]] = {
    **{f"F{8 * size}": np.dtype(f"<f{size}") for size in (8, 4, 2)},
    "BF16": BFLOAT16,
    **{f"I{8 * size}": np.dtype(f"<i{size}") for size in (8, 4, 2, 1)},
    **{f"U{8 * size}": np.dtype(f"<u{size}") for size in (8, 4, 2, 1)},
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_METADATA = "__metadata__"
_ALIGNMENT = 8
_CHUNK = 1 << 24


def read(path: Path) -> dict[str, Array]:
    """Return the tensors by name, as views of the mapped file.

    Raises:
        PortingError: the file is damaged or a pickle, or a tensor has a dtype that NumPy and ``ml_dtypes`` lack.
    """
    try:
        with path.open("rb") as file:
            if pickles.is_pickle(file.read(pickles.START)):
                raise PortingError(f"cannot read {path}: it is a pickle; {pickles.WHY}")
        # The library compares all names, sizes and offsets. But its arrays would be copies.
        with cast("Any", safe_open(path, framework="numpy")) as file:
            names = list(file.keys())
        content = memoryview(files.mapped(path))
    except (OSError, SafetensorError) as error:
        raise PortingError(f"cannot read {path}: {error}; restore the file") from error
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(bytes(content[8 : 8 + length]))
    return {name: _view(path, name, header[name], content[8 + length :]) for name in names}


def write(file: BinaryIO, tensors: Mapping[str, Array]) -> None:
    """Write the tensors, for PyTorch to load, with one in memory at a time."""
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    facts = {name: (tensor.dtype, tensor.shape) for name, tensor in without_verifying(tensors).items()}
    end = 0
    # The library's order: the largest numbers first, so that each tensor is aligned.
    order = sorted(facts, key=lambda name: (-facts[name][0].itemsize, name))
    for name in order:
        dtype, shape = facts[name]
        start, end = end, end + dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(struct.pack("<Q", len(text)) + text)
    for name in order:
        tensor = in_c_order(tensors[name])
        data = np.asarray(tensor, tensor.dtype.newbyteorder("<"), order="C").reshape(-1).view(np.uint8)
        for first in range(0, data.size, _CHUNK):
            file.write(data[first : first + _CHUNK].data)


def _view(path: Path, name: str, entry: Mapping[str, Any], data: memoryview) -> Array:
    if entry["dtype"] not in _DTYPES:
        raise PortingError(
            f"cannot read {path}: {name} is {entry['dtype']}; expected one of {', '.join(_DTYPES)}; save the model as "
            "float32"
        )
    start, end = entry["data_offsets"]
    array = np.frombuffer(data[start:end], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return np.require(array, requirements="A")  # headers need not end at a multiple of the size of a number
