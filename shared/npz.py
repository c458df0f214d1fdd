"""The container: an ``.npz`` that ``numpy.load`` reads and that maps straight into memory.

Members are stored, never compressed, and the payload of each ``.npy`` starts at a multiple of 64 bytes, which the
padding in an extra field of the zip header brings about. So an array is a view of the mapped file: opening costs
nothing, reading costs page faults. The same arrays give the same bytes.
"""

import contextlib
import mmap
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from .arrays import Array
from .errors import CheckpointError

ALIGNMENT = 64
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")  # fixed part of a zip local file header, 30 bytes
_ZIP64_EXTRA = 20  # bytes that zipfile adds to the extra field of a member written with force_zip64
_PADDING_ID = 0x4754  # the id of our padding among a header's extra fields; registered to nobody
_CHUNK = 1 << 24


class Writer:
    """Writes members one after another, so that no more than one array need be in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True)

    def write_array(self, name: str, array: Array) -> None:
        """Append ``array`` as the member ``name`` + ".npy", in C order and little-endian."""
        if array.dtype.hasobject:
            raise CheckpointError(f"{name} holds Python objects; give an array of numbers")
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

    def close(self) -> None:
        """Write the directory of the archive."""
        self._zip.close()

    def _open(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
        info.create_system = 3
        info.external_attr = 0o644 << 16
        payload = self._file.tell() + _LOCAL_HEADER.size + len(name.encode()) + _ZIP64_EXTRA
        padding = -payload % ALIGNMENT
        if 0 < padding < 4:  # an extra field has a header of 4 bytes
            padding += ALIGNMENT
        if padding:
            info.extra = struct.pack("<HH", _PADDING_ID, padding - 4) + bytes(padding - 4)
        return self._zip.open(info, "w", force_zip64=True)  # pyright: ignore[reportReturnType]


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write ``arrays`` to the temporary file ``path`` in the order given; ``files.writing`` is for what must last."""
    with path.open("w+b") as file:
        writer = Writer(file)
        for name, array in arrays.items():
            writer.write_array(name, array)
        writer.close()


class Reader:
    """An open container: ``names`` of the arrays, ``array`` and ``read_bytes`` for the members.

    Arrays are views of a private mapping: writing into one changes neither the file nor another reader's view.

    Raises:
        CheckpointError: the file is missing, is not such a container, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a zip archive"
            raise CheckpointError(f"cannot read {path}: {reason}; give a file that Triglot wrote") from error
        self._members: dict[str, tuple[int, int]] = {}
        for member in members:
            if member.compress_type != zipfile.ZIP_STORED:
                raise self._damaged(f"member {member.filename} is compressed")
            if member.filename in self._members:
                raise self._damaged(f"member {member.filename} occurs twice")
            self._members[member.filename] = (self._payload(member), member.file_size)

    @property
    def names(self) -> list[str]:
        """The names of the arrays, in file order."""
        return [name.removesuffix(".npy") for name in self._members if name.endswith(".npy")]

    def array(self, name: str) -> Array:
        """The array ``name``, a view of the mapped file."""
        start, size = self._member(f"{name}.npy")
        header = _Slice(self._map, start, start + size)
        try:
            version = npy.read_magic(header)
            read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
            shape, fortran_order, dtype = read(header)
        except (ValueError, KeyError) as error:
            raise self._damaged(f"the header of {name} is unreadable") from error
        if dtype.hasobject:
            raise self._damaged(f"{name} is a pickle")
        if fortran_order or header.position + int(np.prod(shape)) * dtype.itemsize != start + size:
            raise self._damaged(f"{name} does not have the size that its header states")
        return np.ndarray(shape, dtype, buffer=self._map, offset=header.position)

    def read_bytes(self, name: str) -> bytes:
        """The content of the member ``name``."""
        start, size = self._member(name)
        return self._map[start : start + size]

    def _member(self, name: str) -> tuple[int, int]:
        if name not in self._members:
            raise self._damaged(f"member {name} is missing")
        return self._members[name]

    def _payload(self, member: zipfile.ZipInfo) -> int:
        header = self._map[member.header_offset : member.header_offset + _LOCAL_HEADER.size]
        if len(header) < _LOCAL_HEADER.size or header[:4] != b"PK\x03\x04":
            raise self._damaged(f"member {member.filename} has no header where the directory says")
        *_, name_length, extra_length = _LOCAL_HEADER.unpack(header)
        start = member.header_offset + _LOCAL_HEADER.size + name_length + extra_length
        if start + member.file_size > len(self._map):
            raise self._damaged(f"member {member.filename} reaches beyond the end of the file")
        return start

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"cannot read {self._path}: {what}; give a file that Triglot wrote")


class _Slice:
    """The least of a file that NumPy's header reader needs, over a part of the mapping."""

    def __init__(self, buffer: mmap.mmap, start: int, end: int) -> None:
        self._buffer, self.position, self._end = buffer, start, end

    def read(self, count: int = 0, /) -> bytes:
        content = self._buffer[self.position : min(self.position + count, self._end)]
        self.position += len(content)
        return content
