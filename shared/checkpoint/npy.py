"""The header of one ``.npy`` array, version 1.0, parsed without evaluating anything."""

import math
import re
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

ALIGNMENT = 64  # bytes; headers are padded to a multiple of it
LONGEST_HEADER = 1024

# Exactly what NumPy writes; other spellings of the same header are refused.
_HEADER = re.compile(
    rb"\{'descr': '([<>|=]\w{1,8})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:%(size)b,|%(size)b(?:, %(size)b){1,31})?)\), \} *\n" % {b"size": rb"(?:0|[1-9]\d{0,17})"}
)
# An array of objects, or of records that contain objects. The first line ends where the numbers begin.
_PICKLED = re.compile(rb"\x93NUMPY..(?:..|....)\{'descr': [^\n]*\|O", re.DOTALL)

_NUMBERS = ("b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
_DTYPES = {np.dtype(number).newbyteorder("<").str.encode(): np.dtype(number) for number in _NUMBERS}


class Header(NamedTuple):
    """The fields of a ``.npy`` header; the numbers begin at byte ``end``."""

    end: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool

    @property
    def size(self) -> int:
        """The size of the whole ``.npy``, in bytes."""
        return self.end + math.prod(self.shape) * self.dtype.itemsize


def parse_header(content: bytes) -> Header:
    """Parse the header at the start of ``content``.

    Raises:
        ValueError: NumPy would not write it for an array of numbers. The message continues a sentence that begins
            with the name of the array.
    """
    if content[:6] != npy.MAGIC_PREFIX or content[6:8] != b"\x01\x00":
        raise ValueError("is not an array of .npy version 1.0")
    end = 10 + int.from_bytes(content[8:10], "little")
    match = _HEADER.fullmatch(content[10:end])
    if match is None or end % ALIGNMENT or len(content) < end:
        raise ValueError("has an unreadable header")
    kind, fortran_order, sizes = match.groups()
    if kind not in _DTYPES:
        raise ValueError(f"has dtype {kind.decode()}, which checkpoints do not have")
    shape = tuple(int(size) for size in sizes.split(b",") if size.strip())
    return Header(end, shape, _DTYPES[kind], fortran_order == b"True")


def is_pickled(start: bytes) -> bool:
    """Return whether the ``.npy`` that begins with ``start`` holds Python objects, which NumPy pickles."""
    return _PICKLED.match(start) is not None
