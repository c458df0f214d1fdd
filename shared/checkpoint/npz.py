"""The ``.npz`` container of checkpoints: ``numpy.load`` reads it, and it maps straight into memory.

Members are stored, never compressed, and the payload of each ``.npy`` starts at a multiple of 64 bytes, because an
extra field of the zip header pads it. So an array is a view of the mapped file: opening costs nothing, reading costs
page faults. The same arrays give the same bytes.
"""

import contextlib
import json
import mmap
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Self, cast

import numpy as np
from numpy.lib import format as npy_format

from triglot.shared import files, pickles
from triglot.shared.arrays import BFLOAT16, Array, in_c_order, storable
from triglot.shared.errors import CheckpointError, OutputError

from . import npy, zip_structure
from .npy import ALIGNMENT, LONGEST_HEADER

RESTORE = "use an undamaged file that Triglot wrote"

_LOCAL_HEADER = struct.Struct("<4s5H3L2H")  # fixed part of a zip local file header, 30 bytes
_ZIP64_EXTRA = 20  # bytes that zipfile adds to the extra field of a member written with force_zip64
_CHUNK = 1 << 24
_BFLOAT16_MEMBER = "bfloat16.json"
_LONGEST_LIST = 1 << 20  # of that member, in bytes: JSON takes many times its size in memory


def unreadable(path: Path, problem: str, remedy: str = RESTORE) -> CheckpointError:
    """Return the error for a file that cannot be read as a checkpoint."""
    return CheckpointError(f"cannot read {path}: {problem}; {remedy}")


class Writer:
    """Writes members one by one, so that at most one array has to be in memory. Use it in a ``with`` statement."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True)

    def write_array(self, name: str, array: Array) -> None:
        """Append ``array`` as the member ``name`` + ".npy", in C order and little-endian; bfloat16 as uint16."""
        if array.dtype.hasobject:
            raise CheckpointError(f"{name} holds Python objects; expected an array of numbers")
        array = in_c_order(storable(array))
        array = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        with self._open(f"{name}.npy") as member:
            npy_format.write_array_header_1_0(member, npy_format.header_data_from_array_1_0(array))
            data = array.reshape(-1).view(np.uint8)
            for start in range(0, data.size, _CHUNK):
                member.write(data[start : start + _CHUNK].data)

    def write_bytes(self, name: str, content: bytes | memoryview) -> None:
        """Append ``content`` as the member ``name``."""
        with self._open(name) as member:
            for start in range(0, len(content), _CHUNK):
                member.write(content[start : start + _CHUNK])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self._zip.fp = None  # do not finish the archive: its file is discarded

    def close(self) -> None:
        """Write the directory of the archive, which ends it."""
        self._zip.close()

    def _open(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        if len(name.encode()) > zip_structure.LONGEST_NAME or len(self._zip.filelist) >= zip_structure.MOST_MEMBERS:
            raise CheckpointError(
                f"cannot write {name}: a file holds at most {zip_structure.MOST_MEMBERS} members with names of at most "
                f"{zip_structure.LONGEST_NAME} bytes; use fewer tensors or shorter names"
            )
        info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
        info.create_system = 3
        info.external_attr = 0o644 << 16
        payload = self._file.tell() + _LOCAL_HEADER.size + len(name.encode()) + _ZIP64_EXTRA
        padding = -payload % ALIGNMENT
        if 0 < padding < 4:  # an extra field has a header of 4 bytes
            padding += ALIGNMENT
        if padding:
            info.extra = struct.pack("<HH", zip_structure.PADDING_ID, padding - 4) + bytes(padding - 4)
        return self._zip.open(info, "w", force_zip64=True)  # pyright: ignore[reportReturnType]


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write ``arrays`` to the temporary file ``path``, in their order. ``files.writing`` is for files that must last.

    If some are bfloat16, a last member lists them, so that ``read`` restores them.
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
    """Return the arrays of a file that ``write`` wrote, as views of it.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    reader = Reader(path)
    arrays = {name: reader.array(name) for name in reader.names}
    if _BFLOAT16_MEMBER in reader.members:
        for name in _bfloat16_names(path, reader.read_bytes(_BFLOAT16_MEMBER, _LONGEST_LIST)):
            if name not in arrays or arrays[name].dtype != np.uint16:
                raise unreadable(path, f"{_BFLOAT16_MEMBER} names {name!r}, which is not an array of uint16")
            arrays[name] = arrays[name].view(BFLOAT16)
    return arrays


def _bfloat16_names(path: Path, content: bytes) -> list[str]:
    try:
        names = json.loads(content)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in cast("list[object]", names)):
        raise unreadable(path, f"{_BFLOAT16_MEMBER} is not a list of names")
    return list(dict.fromkeys(cast("list[str]", names)))


class Reader:
    """An open container: ``array`` and ``read_bytes`` return its members.

    Arrays are views of a private mapping: writing into one changes neither the file nor the views of other readers.

    Raises:
        CheckpointError: the file is missing, is damaged, or is another kind of file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._map = files.mapped(path)
            # The headers are far apart: with reading ahead at each, most of the file would be read.
            self._advise("MADV_RANDOM")
            if pickles.is_pickle(self._map[: pickles.START]):
                raise self._pickle("it")
            self._members = {member.name: member for member in zip_structure.members(self._map)}
            for name, member in self._members.items():
                if npy.is_pickled(self._start(member)):
                    raise self._pickle(name.removesuffix(".npy"))
            self._advise("MADV_NORMAL")
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} does not exist; give a checkpoint that Triglot wrote") from error
        except OSError as error:
            raise unreadable(path, str(error.strerror)) from error
        except CheckpointError:
            raise
        except ValueError as error:
            raise unreadable(path, str(error)) from error

    @property
    def names(self) -> list[str]:
        """The names of the arrays, in file order."""
        return [name.removesuffix(".npy") for name in self._members if name.endswith(".npy")]

    @property
    def members(self) -> list[str]:
        """The names of all members, in file order."""
        return list(self._members)

    def array(self, name: str) -> Array:
        """Return the array ``name``, a view of the mapped file."""
        member = self._member(f"{name}.npy")
        if member.start % ALIGNMENT:
            raise unreadable(self._path, f"{name} does not begin at a multiple of {ALIGNMENT} bytes")
        try:
            header = npy.parse_header(self._start(member))
            if header.fortran_order:
                raise ValueError("is stored in Fortran order")
        except ValueError as error:
            raise unreadable(self._path, f"{name} {error}") from error
        if header.size != member.size:
            raise unreadable(self._path, f"{name} does not have the size that its header states")
        try:
            return np.ndarray(header.shape, header.dtype, buffer=self._map, offset=member.start + header.end)
        except ValueError as error:  # one size is 0 and the others are too large
            raise unreadable(self._path, f"{name} has the impossible shape {header.shape}") from error

    def read_bytes(self, name: str, limit: int) -> bytes:
        """Return the content of the member ``name``; refuse one of more than ``limit`` bytes."""
        member = self._member(name)
        if member.size > limit:
            raise unreadable(self._path, f"member {name} has more than {limit} bytes")
        return self._map[member.start : member.start + member.size]

    def _start(self, member: zip_structure.Member) -> bytes:
        return self._map[member.start : member.start + min(member.size, LONGEST_HEADER)]

    def _member(self, name: str) -> zip_structure.Member:
        if name not in self._members:
            raise unreadable(self._path, f"member {name} is missing")
        return self._members[name]

    def _advise(self, advice: str) -> None:
        if hasattr(mmap, advice):
            self._map.madvise(getattr(mmap, advice))

    def _pickle(self, what: str) -> CheckpointError:
        return unreadable(self._path, f"{what} is a pickle", pickles.WHY)
