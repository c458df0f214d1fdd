"""Zip archives are parsed strictly: damage, gaps, overlaps and ambiguities are refused."""

import os
import re
import struct
import zipfile

import numpy as np
import pytest

from triglot.shared.checkpoint import npz
from triglot.shared.errors import CheckpointError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "arrays.npz"


def assert_refused(path, problem):
    with pytest.raises(CheckpointError, match=f"^{re.escape(f'cannot read {path}: {problem}')}"):
        npz.Reader(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is empty"),
        (b"hello", "it is not a zip archive"),
        (b"\x93NUMPY" + bytes(200), "it is not a zip archive"),
        (b"\x80\x02" + bytes(6) + b'{"a": 1}', "it is not a zip archive"),  # safetensors, not a pickle
        (b"PK", "it is cut off"),
        (b"PK\x03\x04" + bytes(500), "it is cut off"),
    ],
)
def test_other_files_are_refused(content, problem, path):
    path.write_bytes(content)
    assert_refused(path, problem)


def test_folders_and_pipes_are_refused(tmp_path, path):
    assert_refused(tmp_path, "Is a directory")
    os.mkfifo(path)
    assert_refused(path, "it is a pipe, which cannot be mapped")


def test_a_file_larger_than_the_memory_is_mapped(path):
    """Linux refuses private mappings larger than its memory, unless told that few pages will be written to."""
    with path.open("wb") as file:
        file.truncate(1 << 42)  # 4 TiB, none of it on the disk
    assert_refused(path, "it is not a zip archive")  # known only after mapping it


def test_compressed_members_are_refused(path):
    np.savez_compressed(path, a=np.zeros(100))
    assert_refused(path, "member a.npy is compressed")


def test_a_repeated_member_is_refused(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", b"")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.npy", b"")
    assert_refused(path, "member a.npy occurs twice")


def test_a_file_cut_anywhere_is_refused(path):
    npz.write(path, {"a": np.arange(5, dtype=np.int8)})
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="cannot read"):
            npz.Reader(path)


@pytest.mark.parametrize("place", [0, 40, 200, 560, 600, None])
def test_missing_and_additional_bytes_are_refused(place, path):
    npz.write(path, {"a": np.arange(50.0)})
    content = path.read_bytes()
    assert len(content) > 600
    place = len(content) if place is None else place
    for damaged in (
        content[: place - 64] + content[place:],
        content[:place] + bytes(64) + content[place:],
        content[:place] + b"x" + content[place:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="cannot read"):
            npz.Reader(path)


@pytest.fixture
def two_members(path):
    """The bytes of a container with the members ``a`` and ``b``, and where each of its headers begins."""
    npz.write(path, {"a": np.arange(3, dtype=np.int8), "b": np.arange(3, dtype=np.int8)})
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        second = archive.getinfo("b.npy").header_offset
        directory = archive.start_dir
    last = content.index(b"PK\x01\x02", directory + 4)
    return content, {"a": 0, "b": second, "directory a": directory, "directory b": last, "end": len(content) - 22}


@pytest.mark.parametrize(
    ("record", "place", "value", "problem"),
    [
        ("a", 0, b"XX", "a member has no header where the directory says"),
        ("a", 6, b"\x08\x00", "member a.npy is encrypted, or its size follows it"),
        ("a", 6, b"\x01\x00", "member a.npy is encrypted, or its size follows it"),
        ("a", 8, b"\x08\x00", "member a.npy is compressed"),
        ("a", 14, b"\xff", "the two headers of member a.npy disagree"),  # checksum
        ("a", 18, struct.pack("<2L", 200, 200), "a ZIP64 extra field is damaged"),
        ("a", 48, b"\xff", "member a.npy is compressed"),  # the size, not the stored size
        ("a", 30, b"c", "the two headers of member a.npy disagree"),
        ("a", 30, b"\xff", "a member has an unreadable name"),
        ("a", 37, b"\xff", "an extra field is damaged"),
        ("b", 30, b"c", "the two headers of member b.npy disagree"),
        ("directory a", 0, b"XX", "its directory is damaged"),
        ("directory a", 8, b"\x01\x00", "member a.npy is encrypted, or its size follows it"),
        ("directory a", 10, b"\x08\x00", "member a.npy is compressed"),
        ("directory a", 16, b"\xff", "the two headers of member a.npy disagree"),
        ("directory a", 20, struct.pack("<2L", 10**6, 10**6), "the two headers of member a.npy disagree"),
        ("directory a", 20, struct.pack("<2L", 10, 131), "member a.npy is compressed"),
        ("directory a", 20, struct.pack("<2L", 2**32 - 1, 2**32 - 1), "a ZIP64 extra field is missing"),
        ("directory a", 32, b"\x01", "its directory is damaged"),  # a comment
        ("directory a", 34, b"\x01", "its directory is damaged"),  # another disk
        ("directory a", 42, struct.pack("<L", 1), "member a.npy does not begin where the previous one ends"),
        ("directory b", 42, struct.pack("<L", 0), "member b.npy does not begin where the previous one ends"),
        ("directory b", 46, b"a", "member a.npy occurs twice"),
        ("directory b", 28, b"\xff\xff", "a member has a name of more than 256 bytes"),
        ("directory b", 28, b"\xff\x00", "it is cut off"),  # a name that exceeds the file
        ("directory b", 46, b"\x00", "a member has an unreadable name"),  # zipfile ends the name there
        ("directory b", 46, b"\xc3\xbc", "a member has an unreadable name"),  # UTF-8 without its flag
        ("directory b", 8, b"\x00\x08", "the two headers of member b.npy disagree"),  # one of them is UTF-8
        ("a", 37, b"\x99", "an extra field is damaged"),  # an id that other readers may know
        ("a", 41, b"x", "an extra field is damaged"),  # something hidden in the padding
        ("end", 8, struct.pack("<2H", 20_000, 20_000), "it has 20000 members, more than 16384"),
        ("end", 4, b"\x01", "its end record has a comment, several disks or two counts"),
        ("end", 8, struct.pack("<2H", 1, 2), "its end record has a comment, several disks or two counts"),
        ("end", 8, struct.pack("<2H", 1, 1), "there are bytes that belong to no member"),
        ("end", 20, b"\x01", "its end record has a comment, several disks or two counts"),
        ("end", 12, b"\x00", "its directory is not where the end record says"),
        ("end", 16, b"\xff", "its directory is not where the end record says"),
        ("end", 16, b"\xff\xff\xff\xff", "its ZIP64 end record is missing"),
    ],
)
def test_damaged_headers_are_refused(record, place, value, problem, two_members, path):
    content, records = two_members
    start = records[record] + place
    assert content[start : start + len(value)] != value, "not damaged"
    content[start : start + len(value)] = value
    path.write_bytes(content)
    assert_refused(path, problem)


def test_a_member_that_overlaps_the_directory_is_refused(two_members, path):
    content, records = two_members
    # The sizes end the local header, in the ZIP64 field.
    local, central = content.index(b"\x93NUMPY", records["b"]) - 16, records["directory b"] + 20
    assert content[local : local + 16] == struct.pack("<2Q", 131, 131)
    assert content[central : central + 8] == struct.pack("<2L", 131, 131)
    content[local : local + 16] = struct.pack("<2Q", 132, 132)
    content[central : central + 8] = struct.pack("<2L", 132, 132)
    path.write_bytes(content)
    assert_refused(path, "member b.npy overlaps the directory")


@pytest.mark.parametrize(("record", "field"), [("directory a", 16), ("end", 12)], ids=["before", "behind"])
def test_bytes_before_and_after_the_directory_are_refused(record, field, two_members, path):
    """The end record counts them: it holds the start (16) and the length (12) of the directory."""
    content, records = two_members
    end = records["end"]
    (number,) = struct.unpack("<L", content[end + field : end + field + 4])
    content[end + field : end + field + 4] = struct.pack("<L", number + 7)
    path.write_bytes(content[: records[record]] + bytes(7) + content[records[record] :])
    assert_refused(path, "there are bytes that belong to no member")


def test_a_directory_in_zip64_is_read(two_members, path):
    """zipfile writes it for more than 65,535 members or 4 GiB; here the members are small."""
    content, records = two_members
    directory, end = records["directory a"], records["end"]
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 2, 2, end - directory, directory)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1)
    escaped = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(content[:end] + record + locator + escaped)
    with np.load(path) as theirs:
        assert theirs.files == ["a", "b"]
    np.testing.assert_array_equal(npz.Reader(path).array("b"), np.arange(3))
    path.write_bytes(content[:end] + record[:-1] + b"\x01" + locator + escaped)
    assert_refused(path, "its directory is not where the end record says")
    path.write_bytes(content[:end] + record + locator[:8] + b"\x00" + locator[9:] + escaped)
    assert_refused(path, "its ZIP64 end record is damaged")
    path.write_bytes(content[:end] + record + locator[:-4] + b"\x02\x00\x00\x00" + escaped)  # of two disks
    assert_refused(path, "its ZIP64 end record is damaged")
    path.write_bytes(content[:end] + record + locator + escaped[:8] + b"\x03\x00\x03\x00" + escaped[12:])
    assert_refused(path, "its two end records disagree")


def test_a_repeated_extra_field_is_refused(path):
    """Readers differ in which of the two they use."""
    npz.write(path, {"n" * 50: np.arange(3)})
    content = path.read_bytes()
    start, (length,) = 30 + 54, struct.unpack("<H", content[28:30])
    padding, zip64 = content[start : start + length - 20], content[start + length - 20 : start + length]
    assert zip64[:4] == struct.pack("<2H", 1, 16)
    assert len(padding) == 24  # as long as an empty padding and another ZIP64 field
    path.write_bytes(content[:start] + struct.pack("<2H", 0x4754, 0) + zip64 * 2 + content[start + length :])
    assert_refused(path, "an extra field is damaged")
