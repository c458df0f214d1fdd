"""The members of a zip archive that another program wrote: ``.pt`` and ``.npz``."""

import struct
import zipfile
import zlib
from pathlib import Path

from triglot.shared import files
from triglot.shared.checkpoint.zip_structure import MOST_MEMBERS
from triglot.shared.errors import PortingError

# What zipfile raises when it opens a damaged archive, and what the checks below raise.
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error)
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # the signature, and the lengths of the name and of the extra field
_BLOCK = 1 << 24


def names(path: Path) -> list[str]:
    """Return the names of the members, or none if the file is not a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [info.filename for info in archive.infolist()]
    except (OSError, *_DAMAGE):
        return []


def read(path: Path) -> dict[str, memoryview]:
    """Return every member by name, as a view of the mapped file, after comparing its checksum.

    Members must be stored, so that small files stay small.

    Raises:
        PortingError: the file is not a zip archive, is damaged, or holds compressed or repeated members.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
        _check(infos, path.stat().st_size)
        content = memoryview(files.mapped(path))
        return {info.filename: _member(content, info) for info in infos}
    except OSError as error:
        raise PortingError(f"cannot read {path}: {error.strerror or error}; restore the file") from error
    except _DAMAGE as error:
        raise PortingError(f"cannot read {path}: {error}; restore the file, or save it again") from error


def _check(infos: list[zipfile.ZipInfo], size: int) -> None:
    if len(infos) > MOST_MEMBERS:
        raise ValueError(f"it has {len(infos)} members, expected at most {MOST_MEMBERS}")
    names: set[str] = set()
    for info in infos:
        if info.filename in names:
            raise ValueError(f"member {info.filename} occurs twice")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise ValueError(f"member {info.filename} is compressed")
        names.add(info.filename)
    if sum(info.file_size for info in infos) > size:
        raise ValueError("its members are larger than the file")


def _member(content: memoryview, info: zipfile.ZipInfo) -> memoryview:
    """Return the content of a member, whose local header zipfile has not read."""
    if not 0 <= info.header_offset <= len(content) - _LOCAL_HEADER.size:
        raise ValueError(f"member {info.filename} does not begin inside the file")
    signature, name_length, extra_length = _LOCAL_HEADER.unpack_from(content, info.header_offset)
    name_start = info.header_offset + _LOCAL_HEADER.size
    start = name_start + name_length + extra_length
    name = bytes(content[name_start : name_start + name_length])
    if signature != b"PK\x03\x04" or name not in (info.filename.encode(), info.filename.encode("cp437", "replace")):
        raise ValueError(f"member {info.filename} has another header than the directory says")
    member = content[start : start + info.file_size]
    if len(member) != info.file_size or _checksum(member) != info.CRC:
        raise ValueError(f"Bad CRC-32 for file {info.filename!r}")  # as zipfile says it
    return member


def _checksum(member: memoryview) -> int:
    checksum = 0
    for start in range(0, len(member), _BLOCK):
        checksum = zlib.crc32(member[start : start + _BLOCK], checksum)
    return checksum
