"""State dicts in ``.pt`` files, as ``torch.save`` writes them since PyTorch 1.6, read and written without torch.

Such a file is a zip archive. The pickle ``NAME/data.pkl`` describes the tensors, the members ``NAME/data/KEY`` hold
their numbers, and ``NAME/byteorder`` is "little" or "big".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from triglot.shared import pickles
from triglot.shared.arrays import Array, in_c_order, storable
from triglot.shared.checkpoint import npz
from triglot.shared.errors import PortingError

from . import torch_pickle
from . import zip as zip_file
from .pickle_machine import RefusalError
from .torch_pickle import SAVE_ALONE, Layout, Storage

_PICKLE, _BYTE_ORDER, _VERSION, _STORAGES = "/data.pkl", "/byteorder", "/version", "/data/"
_NAME = "archive"  # the name that torch.save uses when it writes to an open file


def read(path: Path) -> dict[str, Array]:
    """Return the tensors by name, as views of their storages with the strides of the file. Nothing in the file is run.

    Raises:
        PortingError: the file is damaged, was written by PyTorch before 1.6, or is anything but a state dict.
    """
    try:
        with path.open("rb") as file:
            start = file.read(pickles.START)
    except OSError as error:
        raise PortingError(f"cannot read {path}: {error.strerror}; restore it, or change its permissions") from error
    if start[:2] != b"PK" and pickles.is_pickle(start):
        raise PortingError(
            f"cannot read {path}: it is a bare pickle, the format before PyTorch 1.6; save the state dict with a newer "
            "PyTorch"
        )
    members = zip_file.read(path)
    try:
        return _tensors(members)
    except RefusalError as error:
        raise PortingError(f"cannot read {path}: {error}") from error


def write(file: BinaryIO, tensors: Mapping[str, Array]) -> None:
    """Write a state dict that ``torch.load(path, weights_only=True)`` reads."""
    layouts: dict[str, Layout] = {}
    with npz.Writer(file) as writer:
        for number, (name, tensor) in enumerate(tensors.items()):
            data = in_c_order(tensor)
            strides = tuple(stride // data.itemsize for stride in data.strides)
            layouts[name] = Layout(Storage(str(number), data.dtype, data.size), 0, tensor.shape, strides)
            writer.write_bytes(f"{_NAME}{_STORAGES}{number}", storable(data).reshape(-1).view(np.uint8).data)
        writer.write_bytes(f"{_NAME}{_PICKLE}", torch_pickle.write(layouts))
        writer.write_bytes(f"{_NAME}{_BYTE_ORDER}", b"little")
        writer.write_bytes(f"{_NAME}{_VERSION}", b"3\n")


def _tensors(members: Mapping[str, memoryview]) -> dict[str, Array]:
    descriptions = [name for name in members if name.endswith(_PICKLE) and name.count("/") == 1]
    if len(descriptions) != 1:
        raise RefusalError(f"it has {len(descriptions)} members NAME{_PICKLE}, expected one; save it with torch.save")
    name = descriptions[0].removesuffix(_PICKLE)
    if f"{name}/constants.pkl" in members:
        raise RefusalError(f"it is a TorchScript program; {SAVE_ALONE}")
    order = bytes(members.get(f"{name}{_BYTE_ORDER}", b"little"))
    if order not in (b"little", b"big"):
        raise RefusalError(f"its byteorder is {order[:20]!r}; expected little or big; restore the file")
    layouts = torch_pickle.read(members[descriptions[0]])
    storages: dict[Storage, Array] = {}
    for layout in layouts.values():
        if layout.storage not in storages:
            storages[layout.storage] = _numbers(layout.storage, members, f"{name}{_STORAGES}", big=order == b"big")
    return {name: _view(name, layout, storages[layout.storage]) for name, layout in layouts.items()}


def _numbers(storage: Storage, members: Mapping[str, memoryview], folder: str, *, big: bool) -> Array:
    content = members.get(f"{folder}{storage.key}")
    if content is None:
        raise RefusalError(f"its storage {storage.key[:80]!r} is missing; restore the file, or save it again")
    if len(content) != storage.numbers * storage.dtype.itemsize:
        raise RefusalError(
            f"its storage {storage.key} has {len(content)} bytes, expected {storage.numbers} of {storage.dtype}; "
            "restore the file, or save it again"
        )
    bits = np.frombuffer(content, f"{'>' if big else '<'}u{storage.dtype.itemsize}")
    return bits.astype(f"u{storage.dtype.itemsize}", copy=False).view(storage.dtype)


def _view(name: str, layout: Layout, numbers: Array) -> Array:
    size = layout.storage.dtype.itemsize
    strides = tuple(size * stride for stride in layout.strides)
    try:  # NumPy refuses a view that exceeds its buffer
        return np.ndarray(layout.shape, numbers.dtype, numbers, layout.offset * size, strides)
    except (ValueError, OverflowError, TypeError) as error:
        raise RefusalError(f"{name[:80]!r} exceeds its storage; restore the file, or save it again") from error
