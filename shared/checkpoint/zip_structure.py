"""A strict parser of zip archives: every byte belongs to exactly one member or to the directory.

Zip readers are usually lenient: they accept bytes before, between and after the members, and members that overlap. A
checkpoint has none of these, so they are damage or an attack, and raise ``ValueError`` before any content is used. Only
headers are read. Bytes that two readers could understand differently (a name in two encodings, a repeated field) are
refused too, so ``numpy.load`` sees the same arrays.
"""

import mmap
import struct
from collections.abc import Iterator
from typing import NamedTuple

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_64 = struct.Struct("<4sIQI")
_EXTRA = struct.Struct("<2H")

_ESCAPE_32 = 0xFFFFFFFF  # the real number is in the ZIP64 field
_ESCAPE_16 = 0xFFFF
_ZIP64_ID = 1
_UTF8_FLAG = 0x800

PADDING_ID = 0x4754  # the id of the extra field that pads a header; not registered
# Ten times the tensors of the deepest Transformers, and several times the longest name. These limits keep the memory
# for hostile headers close to the size of the headers themselves.
MOST_MEMBERS = 16_384
LONGEST_NAME = 256


class Member(NamedTuple):
    """A member: its payload is ``buffer[start : start + size]``."""

    name: str
    start: int
    size: int


class _Entry(NamedTuple):
    """The fields of a local or central header; the header ends at byte ``end``."""

    name: str
    checksum: int
    size: int
    flags: int
    offset: int
    end: int


def members(buffer: mmap.mmap) -> list[Member]:
    """Return every member, in file order.

    Raises:
        ValueError: the buffer is not one archive of stored members without gaps, overlaps or repetitions.
    """
    try:
        return list(_members(buffer))
    except struct.error as error:
        raise ValueError("it is cut off") from error
    except UnicodeDecodeError as error:
        raise ValueError("a member has an unreadable name") from error


def _members(buffer: mmap.mmap) -> Iterator[Member]:
    count, directory, directory_end = _directory(buffer)
    if count > MOST_MEMBERS:
        raise ValueError(f"it has {count} members, more than {MOST_MEMBERS}")
    names: set[str] = set()
    position, end_of_payload = directory, 0
    for _ in range(count):
        central = _central(buffer, position)
        position = central.end
        if central.name in names:
            raise ValueError(f"member {central.name} occurs twice")
        names.add(central.name)
        if central.offset != end_of_payload:
            raise ValueError(f"member {central.name} does not begin where the previous one ends")
        local = _local(buffer, central.offset)
        if (local.name, local.checksum, local.size, local.flags) != (
            central.name,
            central.checksum,
            central.size,
            central.flags,
        ):
            raise ValueError(f"the two headers of member {central.name} disagree")
        end_of_payload = local.end + local.size
        if end_of_payload > directory:
            raise ValueError(f"member {central.name} overlaps the directory")
        yield Member(local.name, local.end, local.size)
    if position != directory_end or end_of_payload != directory:
        raise ValueError("there are bytes that belong to no member")


def _directory(buffer: mmap.mmap) -> tuple[int, int, int]:
    """Return the number of members, and where their directory begins and ends."""
    end = len(buffer) - _END.size
    if end < 0 or buffer[end : end + 4] != b"PK\x05\x06":
        raise ValueError("it is cut off" if buffer[:2] == b"PK" else "it is not a zip archive")
    _, disk, first_disk, here, count, size, start, comment = _END.unpack_from(buffer, end)
    if disk or first_disk or comment or here != count:
        raise ValueError("its end record has a comment, several disks or two counts")
    if _ESCAPE_16 in (here, count) or _ESCAPE_32 in (size, start):
        locator = end - _LOCATOR_64.size
        end = locator - _END_64.size
        if end < 0 or buffer[locator : locator + 4] != b"PK\x06\x07" or buffer[end : end + 4] != b"PK\x06\x06":
            raise ValueError("its ZIP64 end record is missing")
        _, locator_disk, where, disks = _LOCATOR_64.unpack_from(buffer, locator)
        _, record, _, _, disk, first_disk, here, *numbers = _END_64.unpack_from(buffer, end)
        if where != end or record != _END_64.size - 12 or (disk, first_disk, locator_disk, disks) != (0, 0, 0, 1):
            raise ValueError("its ZIP64 end record is damaged")
        escapes = (_ESCAPE_16, _ESCAPE_32, _ESCAPE_32)
        for short, long, escape in zip((count, size, start), numbers, escapes, strict=True):
            if short not in (escape, long):
                raise ValueError("its two end records disagree")
        count, size, start = numbers
        if here != count:
            raise ValueError("its ZIP64 end record is damaged")
    if start + size != end:
        raise ValueError("its directory is not where the end record says")
    return count, start, end


def _central(buffer: mmap.mmap, position: int) -> _Entry:
    fields = _CENTRAL.unpack_from(buffer, position)
    signature, _, _, flags, method, _, _, checksum, stored, size, name_length, extra_length, comment = fields[:13]
    disk, _, _, offset = fields[13:]
    if signature != b"PK\x01\x02" or comment or disk:
        raise ValueError("its directory is damaged")
    name = _name(buffer, position + _CENTRAL.size, name_length, flags)
    _check_method(name, flags, method)
    extra = position + _CENTRAL.size + name_length
    size, stored, offset = _zip64(buffer, extra, extra_length, [size, stored, offset])
    if size != stored:
        raise ValueError(f"member {name} is compressed")
    return _Entry(name, checksum, size, flags, offset, extra + extra_length)


def _local(buffer: mmap.mmap, position: int) -> _Entry:
    fields = _LOCAL.unpack_from(buffer, position)
    signature, _, flags, method, _, _, checksum, stored, size, name_length, extra_length = fields
    if signature != b"PK\x03\x04":
        raise ValueError("a member has no header where the directory says")
    name = _name(buffer, position + _LOCAL.size, name_length, flags)
    _check_method(name, flags, method)
    extra = position + _LOCAL.size + name_length
    size, stored = _zip64(buffer, extra, extra_length, [size, stored])
    if size != stored:
        raise ValueError(f"member {name} is compressed")
    return _Entry(name, checksum, size, flags, position, extra + extra_length)


def _name(buffer: mmap.mmap, start: int, length: int, flags: int) -> str:
    if length > LONGEST_NAME:
        raise ValueError(f"a member has a name of more than {LONGEST_NAME} bytes")
    raw = buffer[start : start + length]
    if len(raw) != length:
        raise ValueError("it is cut off")
    name = raw.decode("utf-8")
    if not name.isprintable() or not (raw.isascii() or flags & _UTF8_FLAG):
        raise ValueError("a member has an unreadable name")  # other readers cut it at its NUL, or decode it differently
    return name


def _check_method(name: str, flags: int, method: int) -> None:
    if method:
        raise ValueError(f"member {name} is compressed")
    if flags & ~_UTF8_FLAG:
        raise ValueError(f"member {name} is encrypted, or its size follows it")


def _zip64(buffer: mmap.mmap, start: int, length: int, numbers: list[int]) -> list[int]:
    """Return ``numbers``, with the escaped ones replaced by their values in the ZIP64 extra field. Skip the padding."""
    position, end = start, start + length
    values, seen = list(numbers), set[int]()
    while position < end:
        kind, size = _EXTRA.unpack_from(buffer, position)
        position += _EXTRA.size
        if position + size > end or kind in seen or kind not in (_ZIP64_ID, PADDING_ID):
            raise ValueError("an extra field is damaged")
        seen.add(kind)
        if kind == _ZIP64_ID:
            places = [place for place, number in enumerate(numbers) if number == _ESCAPE_32]
            if size != 8 * len(places):
                raise ValueError("a ZIP64 extra field is damaged")
            for place, value in zip(places, struct.unpack_from(f"<{len(places)}Q", buffer, position), strict=True):
                values[place] = value
        elif buffer[position : position + size].count(0) != size:
            raise ValueError("an extra field is damaged")
        position += size
    if _ZIP64_ID not in seen and _ESCAPE_32 in values:
        raise ValueError("a ZIP64 extra field is missing")
    return values
