"""The container: an ``.npz`` that ``numpy.load`` reads and that maps straight into memory.

Members are stored, never compressed, and the payload of each ``.npy`` starts at a multiple of 64 bytes, which the
padding in an extra field of the zip header brings about. So an array is a view of the mapped file: opening costs
nothing, reading costs page faults. The same arrays give the same bytes.
"""

import contextlib
import json
import math
import mmap
import os
import re
import struct
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self, cast

import numpy as np
from numpy.lib import format as npy

from triglot.shared import pickles
from triglot.shared.arrays import Array
from triglot.shared.dtypes import BFLOAT16, storable
from triglot.shared.errors import CheckpointError, OutputError

from . import zip_structure as archive

ALIGNMENT = 64
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")  # fixed part of a zip local file header, 30 bytes
_ZIP64_EXTRA = 20  # bytes that zipfile adds to the extra field of a member written with force_zip64
_CHUNK = 1 << 24
_BFLOAT16_MEMBER = "bfloat16.json"
_LONGEST_LIST = 1 << 20  # of that member, in bytes: JSON becomes many times as much in memory

# What NumPy writes as the header of a .npy file, version 1.0, and nothing else that means the same.
_HEADER = re.compile(
    rb"\{'descr': '([<>|=]\w{1,8})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:%(size)b,|%(size)b(?:, %(size)b){1,31})?)\), \} *\n" % {b"size": rb"(?:0|[1-9]\d{0,17})"}
)
LONGEST_HEADER = 1024
# An array of objects, or of records with objects in them; the line ends where the numbers begin.
PICKLED_ARRAY = re.compile(rb"\x93NUMPY..(?:..|....)\{'descr': [^\n]*\|O", re.DOTALL)

# A private mapping counts as memory to come, and Linux refuses one that is larger than the machine's memory: then a
# large checkpoint could not even be opened. With MAP_NORESERVE only the pages that are written to count.
_MAP_NORESERVE = 0x4000
_PRIVATE: dict[str, int] = (
    {"flags": mmap.MAP_PRIVATE | _MAP_NORESERVE, "prot": mmap.PROT_READ | mmap.PROT_WRITE}
    if sys.platform == "linux"
    else {"access": mmap.ACCESS_COPY}
)
_NUMBERS = ("b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
_DTYPES = {np.dtype(number).newbyteorder("<").str.encode(): np.dtype(number) for number in _NUMBERS}


class Writer:
    """Writes members one after another, so that no more than one array need be in memory. Use it in a ``with``."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True)

    def write_array(self, name: str, array: Array) -> None:
        """Append ``array`` as the member ``name`` + ".npy", in C order and little-endian; bfloat16 as uint16."""
        if array.dtype.hasobject:
            raise CheckpointError(f"{name} holds Python objects; give an array of numbers")
        array = storable(array)
        array = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        with self._open(f"{name}.npy") as member:
            npy.write_array_header_1_0(member, npy.header_data_from_array_1_0(array))
            data = array.reshape(-1).view(np.uint8)
            for start in range(0, data.size, _CHUNK):
                member.write(data[start : start + _CHUNK].data)

    def write_bytes(self, name: str, content: bytes) -> None:
        """Append ``content`` as the member ``name``."""
        with self._open(name) as member:
            member.write(content)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self._zip.fp = None  # nothing is to be finished: the file is going away

    def close(self) -> None:
        """Write the directory of the archive, its last part."""
        self._zip.close()

    def _open(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        if len(name.encode()) > archive.LONGEST_NAME or len(self._zip.filelist) >= archive.MOST_MEMBERS:
            raise CheckpointError(
                f"cannot write {name}: a file holds at most {archive.MOST_MEMBERS} members with names of at most "
                f"{archive.LONGEST_NAME} bytes; leave some out"
            )
        info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
        info.create_system = 3
        info.external_attr = 0o644 << 16
        payload = self._file.tell() + _LOCAL_HEADER.size + len(name.encode()) + _ZIP64_EXTRA
        padding = -payload % ALIGNMENT
        if 0 < padding < 4:  # an extra field has a header of 4 bytes
            padding += ALIGNMENT
        if padding:
            info.extra = struct.pack("<HH", archive.PADDING_ID, padding - 4) + bytes(padding - 4)
        return self._zip.open(info, "w", force_zip64=True)  # pyright: ignore[reportReturnType]


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write ``arrays`` to the temporary file ``path`` in the order given; ``files.writing`` is for what must last.

    If some are bfloat16, a last member says which, so that ``read`` gives them back as they were.
    """
    try:
        with path.open("w+b") as file:
            _write(file, arrays)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror}; free space, or set TMPDIR to another folder"
        ) from error


def _write(file: BinaryIO, arrays: Mapping[str, Array]) -> None:
    with Writer(file) as writer:
        for name, array in arrays.items():
            writer.write_array(name, array)
        if bfloat16 := [name for name, array in arrays.items() if array.dtype == BFLOAT16]:
            writer.write_bytes(_BFLOAT16_MEMBER, json.dumps(bfloat16).encode())


def read(path: Path) -> dict[str, Array]:
    """The arrays of a file by ``write``, views of it.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    reader = Reader(path)
    arrays = {name: reader.array(name) for name in reader.names}
    if _BFLOAT16_MEMBER in reader.members:
        for name in _bfloat16_names(path, reader.read_bytes(_BFLOAT16_MEMBER, _LONGEST_LIST)):
            if name not in arrays or arrays[name].dtype != np.uint16:
                raise _unreadable(path, f"{_BFLOAT16_MEMBER} names {name!r}, which is no array of uint16")
            arrays[name] = arrays[name].view(BFLOAT16)
    return arrays


def _bfloat16_names(path: Path, content: bytes) -> list[str]:
    try:
        names = json.loads(content)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in cast("list[object]", names)):
        raise _unreadable(path, f"{_BFLOAT16_MEMBER} is no list of names")
    return list(dict.fromkeys(cast("list[str]", names)))


class Reader:
    """An open container: ``names`` of the arrays, ``array`` and ``read_bytes`` for the members.

    Arrays are views of a private mapping: writing into one changes neither the file nor another reader's view.

    Raises:
        CheckpointError: the file is missing, is not such a container, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            if path.is_fifo():
                raise ValueError("it is a pipe, which cannot be mapped")  # and to open it could take for ever
            with path.open("rb") as file:
                if not os.fstat(file.fileno()).st_size:
                    raise ValueError("it is empty")
                self._map = mmap.mmap(file.fileno(), 0, **_PRIVATE)
            # The headers are far apart: to read ahead at each would mean to read most of the file.
            self._advise("MADV_RANDOM")
            if pickles.is_pickle(self._map[: pickles.START]):
                raise self._pickle("it")
            self._members = {member.name: member for member in archive.members(self._map)}
            for name, member in self._members.items():
                if PICKLED_ARRAY.match(self._map[member.start : member.start + min(member.size, LONGEST_HEADER)]):
                    raise self._pickle(name.removesuffix(".npy"))
            self._advise("MADV_NORMAL")
        except FileNotFoundError as error:
            raise CheckpointError(f"there is no {path}; give a checkpoint that Triglot wrote") from error
        except OSError as error:
            raise self._unreadable(str(error.strerror)) from error
        except CheckpointError:
            raise
        except ValueError as error:
            raise self._unreadable(str(error)) from error

    @property
    def names(self) -> list[str]:
        """The names of the arrays, in file order."""
        return [name.removesuffix(".npy") for name in self._members if name.endswith(".npy")]

    @property
    def members(self) -> list[str]:
        """The names of all members, in file order."""
        return list(self._members)

    def array(self, name: str) -> Array:
        """The array ``name``, a view of the mapped file."""
        member = self._member(f"{name}.npy")
        if member.start % ALIGNMENT:
            raise self._unreadable(f"{name} does not begin at a multiple of {ALIGNMENT} bytes")
        try:
            found = header(self._map[member.start : member.start + min(member.size, LONGEST_HEADER)])
            if found.fortran_order:
                raise ValueError("is stored in Fortran order")
        except ValueError as error:
            raise self._unreadable(f"{name} {error}") from error
        if found.size != member.size:
            raise self._unreadable(f"{name} does not have the size that its header states")
        try:
            return np.ndarray(found.shape, found.dtype, buffer=self._map, offset=member.start + found.end)
        except ValueError as error:  # an axis of 0 beside others that no memory holds
            raise self._unreadable(f"{name} has the impossible shape {found.shape}") from error

    def read_bytes(self, name: str, limit: int) -> bytes:
        """The content of the member ``name``, which is refused if it has more than ``limit`` bytes."""
        member = self._member(name)
        if member.size > limit:
            raise self._unreadable(f"member {name} has more than {limit} bytes")
        return self._map[member.start : member.start + member.size]

    def _member(self, name: str) -> archive.Member:
        if name not in self._members:
            raise self._unreadable(f"member {name} is missing")
        return self._members[name]

    def _unreadable(self, why: str) -> CheckpointError:
        return _unreadable(self._path, why)

    def _advise(self, advice: str) -> None:
        if hasattr(mmap, advice):
            self._map.madvise(getattr(mmap, advice))

    def _pickle(self, what: str) -> CheckpointError:
        return CheckpointError(f"cannot read {self._path}: {what} is a pickle; {pickles.WHY}")


def _unreadable(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"cannot read {path}: {why}; give an undamaged file that Triglot wrote")


class Header(NamedTuple):
    """What the header of a ``.npy`` says; ``end`` is where the numbers begin."""

    end: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool

    @property
    def size(self) -> int:
        """Of the whole ``.npy``, in bytes."""
        return self.end + math.prod(self.shape) * self.dtype.itemsize


def header(content: bytes) -> Header:
    """The header at the start of ``content``. Nothing in it is evaluated.

    Raises:
        ValueError: it is not what NumPy writes for an array of numbers; the message goes on after a name.
    """
    if content[:6] != npy.MAGIC_PREFIX or content[6:8] != b"\x01\x00":
        raise ValueError("is no array of .npy version 1.0")
    end = 10 + int.from_bytes(content[8:10], "little")
    match = _HEADER.fullmatch(content[10:end])
    if match is None or end % ALIGNMENT or len(content) < end:
        raise ValueError("has an unreadable header")
    kind, fortran_order, sizes = match.groups()
    if kind not in _DTYPES:
        raise ValueError(f"has dtype {kind.decode()}, which no checkpoint has")
    shape = tuple(int(size) for size in sizes.split(b",") if size.strip())
    return Header(end, shape, _DTYPES[kind], fortran_order == b"True")
