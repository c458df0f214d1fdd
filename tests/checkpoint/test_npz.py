"""The container and the files it goes into: what NumPy and zip tools read, and what the reader refuses."""

import io
import json
import os
import re
import stat
import struct
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from triglot.shared.checkpoint import npz
from triglot.shared.checkpoint import zip_structure as archive
from triglot.shared.dtypes import BFLOAT16
from triglot.shared.errors import CheckpointError

DTYPES = [f"{order}{kind}" for order in "<>" for kind in ("f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8")]
DTYPES += ["|i1", "|u1", "|b1"]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "arrays.npz"


def npy(shape, payload, dtype="<f4", fortran_order=False):
    """One ``.npy`` as bytes, with a header that states what it is told to."""
    content = io.BytesIO()
    header = {"descr": dtype, "fortran_order": fortran_order, "shape": shape}
    np.lib.format.write_array_header_1_0(content, header)
    return content.getvalue() + payload


def write_members(path, **members):
    """A container with the members ``name`` + ".npy", of which only the place in the file is as it should be."""
    with path.open("w+b") as file:
        writer = npz.Writer(file)
        for name, content in members.items():
            writer.write_bytes(f"{name}.npy", content)
        writer.close()


def payload_offsets(path):
    """Where the bytes of each member begin in the file, read from its local zip header as the format describes it."""
    content = path.read_bytes()
    offsets = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            start = member.header_offset
            assert content[start : start + 4] == b"PK\x03\x04"
            name_length, extra_length = struct.unpack("<2H", content[start + 26 : start + 30])
            offsets[member.filename] = start + 30 + name_length + extra_length
    return offsets


@given(st.dictionaries(st.from_regex(r"[a-z0-9._ü]{1,40}", fullmatch=True), ARRAYS, max_size=4))
@settings(deadline=None, max_examples=50)
def test_numpy_and_the_reader_read_back_what_was_written(arrays):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "arrays.npz"
        npz.write(path, arrays)
        reader = npz.Reader(path)
        assert reader.names == list(arrays)
        with np.load(path) as theirs:
            assert theirs.files == list(arrays)
            for name, array in arrays.items():
                little_endian = array.astype(array.dtype.newbyteorder("<"))
                for found in (theirs[name], reader.array(name)):
                    assert found.dtype == little_endian.dtype
                    assert found.shape == array.shape
                    assert found.tobytes() == little_endian.tobytes()  # NaN payloads and signed zeros included


def test_layout_in_memory_does_not_show_in_the_file(tmp_path):
    matrix = np.arange(24, dtype=np.float32).reshape(4, 6)
    layouts = {
        "plain": matrix,
        "transposed": np.ascontiguousarray(matrix.T).T,
        "fortran": np.asfortranarray(matrix),
        "strided": np.repeat(matrix, 2, axis=1)[:, ::2],
        "reversed": matrix[::-1][::-1],
        "big_endian": matrix.astype(">f4"),
        "read_only": np.frombuffer(matrix.tobytes(), np.float32).reshape(4, 6),
    }
    contents = set()
    for name, array in layouts.items():
        np.testing.assert_array_equal(array, matrix, err_msg=name)
        npz.write(tmp_path / name, {"matrix": array})
        contents.add((tmp_path / name).read_bytes())
    assert len(contents) == 1


def test_identical_content_gives_identical_bytes(tmp_path):
    arrays = {"a": np.arange(5.0), "b": np.array(True)}
    npz.write(tmp_path / "first", arrays)
    os.utime(tmp_path / "first", (0, 0))
    npz.write(tmp_path / "second", arrays)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    npz.write(tmp_path / "third", {"a": np.arange(5.0), "b": np.array(False)})
    assert (tmp_path / "first").read_bytes() != (tmp_path / "third").read_bytes()


def test_every_payload_starts_at_a_multiple_of_64(path):
    # Names of 1 to 130 bytes and odd sizes: the padding takes every value, also those that are too small for a header.
    arrays = {"n" * length: np.arange(length % 7, dtype=np.int8) for length in range(1, 131)}
    npz.write(path, arrays)
    content = path.read_bytes()
    offsets = payload_offsets(path)
    assert len(offsets) == len(arrays)
    reader = npz.Reader(path)
    for name, array in arrays.items():
        start = offsets[f"{name}.npy"]
        (header_length,) = struct.unpack("<H", content[start + 8 : start + 10])
        data = start + 10 + header_length
        assert start % 64 == 0, name
        assert data % 64 == 0, name
        assert content[data : data + array.nbytes] == array.tobytes()
        assert reader.array(name).ctypes.data % 64 == 0, name


def test_bytes_are_a_member_of_their_own_name(path):
    with path.open("w+b") as file:
        writer = npz.Writer(file)
        writer.write_array("a", np.arange(3))
        writer.write_bytes("manifest.json", b"{}")
        writer.close()
    reader = npz.Reader(path)
    assert reader.names == ["a"]
    assert reader.read_bytes("manifest.json", 100) == b"{}"
    assert payload_offsets(path)["manifest.json"] % 64 == 0


def test_an_array_larger_than_one_chunk_is_whole(path):
    array = np.arange(2**24 + 5, dtype=np.uint8)  # written in chunks of 2^24 bytes
    npz.write(path, {"large": array})
    np.testing.assert_array_equal(npz.Reader(path).array("large"), array)


def test_zip_tools_find_nothing_wrong(path):
    npz.write(path, {"a": np.arange(1000.0), "b": np.zeros((0, 3)), "c": np.array(1)})
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["a.npy", "b.npy", "c.npy"]
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {stat.filemode(member.external_attr >> 16) for member in archive.infolist()} == {"?rw-r--r--"}


def test_writing_into_an_array_changes_neither_file_nor_other_readers(path):
    npz.write(path, {"a": np.arange(5.0), "b": np.arange(3)})
    before = path.read_bytes()
    mine, other = npz.Reader(path), npz.Reader(path)
    theirs = other.array("a")
    mine.array("a")[:] = -1
    np.testing.assert_array_equal(mine.array("a"), -1)
    np.testing.assert_array_equal(mine.array("b"), np.arange(3))
    np.testing.assert_array_equal(theirs, np.arange(5.0))
    np.testing.assert_array_equal(other.array("a"), np.arange(5.0))
    np.testing.assert_array_equal(npz.Reader(path).array("a"), np.arange(5.0))
    assert path.read_bytes() == before


@pytest.mark.parametrize("array", [np.array([None]), np.array([(1, "x")], [("a", "i4"), ("b", "O")])])
def test_arrays_of_objects_are_not_written(array, path):
    with path.open("w+b") as file:
        writer = npz.Writer(file)
        with pytest.raises(CheckpointError, match=r"^weights holds Python objects; give an array of numbers$"):
            writer.write_array("weights", array)
        writer.close()
    assert npz.Reader(path).names == []


def assert_refused(path, reason):
    message = f"^{re.escape(f'cannot read {path}: {reason}')}; give an undamaged file that Triglot wrote$"
    with pytest.raises(CheckpointError, match=message):
        npz.Reader(path)


def assert_array_refused(path, reason):
    reader = npz.Reader(path)
    message = f"^{re.escape(f'cannot read {path}: {reason}')}; give an undamaged file that Triglot wrote$"
    with pytest.raises(CheckpointError, match=message):
        reader.array("a")


def test_a_missing_file_is_refused(path):
    with pytest.raises(CheckpointError) as caught:
        npz.Reader(path)
    assert str(caught.value) == f"there is no {path}; give a checkpoint that Triglot wrote"


def test_a_folder_is_refused(tmp_path):
    assert_refused(tmp_path, "Is a directory")


def test_an_empty_file_is_refused(path):
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"^cannot read {re.escape(str(path))}: "):
        npz.Reader(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"hello", "it is not a zip archive"),
        (b"\x93NUMPY" + bytes(200), "it is not a zip archive"),
        (b"\x80\x02" + bytes(6) + b'{"a": 1}', "it is not a zip archive"),  # safetensors, which is no pickle
        (b"PK", "it is cut off"),
        (b"PK\x03\x04" + bytes(500), "it is cut off"),
    ],
)
def test_what_is_no_archive_is_refused(content, reason, path):
    path.write_bytes(content)
    assert_refused(path, reason)


def test_compressed_members_are_refused(path):
    np.savez_compressed(path, a=np.zeros(100))
    assert_refused(path, "member a.npy is compressed")


def test_a_repeated_member_is_refused(path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        write_twice(path, npy((1,), bytes(4)))
    assert_refused(path, "member a.npy occurs twice")


def write_twice(path, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", content)
        archive.writestr("a.npy", content)


def test_an_archive_that_maps_badly_is_refused(path):
    np.savez(path, a=np.zeros(100))  # NumPy aligns nothing
    assert payload_offsets(path)["a.npy"] % 64
    assert_array_refused(path, "a does not begin at a multiple of 64 bytes")


def test_a_file_cut_anywhere_is_refused(path):
    npz.write(path, {"a": np.arange(5, dtype=np.int8)})
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="cannot read"):
            npz.Reader(path)


@pytest.mark.parametrize("place", [0, 40, 200, 560, 600])
def test_a_file_with_a_hole_or_a_filling_is_refused(place, path):
    npz.write(path, {"a": np.arange(50.0)})
    content = path.read_bytes()
    assert len(content) > 600
    for damaged in (content[:place] + content[place + 64 :], content[:place] + bytes(64) + content[place:]):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="cannot read"):
            npz.Reader(path)


def test_something_before_or_behind_an_archive_is_refused(path):
    npz.write(path, {"a": np.arange(50.0)})
    content = path.read_bytes()
    for damaged in (b"x" + content, content + b"x", bytes(64) + content):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="cannot read"):
            npz.Reader(path)


@pytest.fixture
def two_members(path):
    """The bytes of a container with the members ``a`` and ``b``, and where in it each header begins."""
    npz.write(path, {"a": np.arange(3, dtype=np.int8), "b": np.arange(3, dtype=np.int8)})
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        second = archive.getinfo("b.npy").header_offset
        directory = archive.start_dir
    last = content.index(b"PK\x01\x02", directory + 4)
    return content, {"a": 0, "b": second, "directory a": directory, "directory b": last, "end": len(content) - 22}


@pytest.mark.parametrize(
    ("record", "place", "value", "reason"),
    [
        ("a", 0, b"XX", "a member has no header where the directory says"),
        ("a", 6, b"\x08\x00", "member a.npy is encrypted, or its size stands behind it"),
        ("a", 6, b"\x01\x00", "member a.npy is encrypted, or its size stands behind it"),
        ("a", 8, b"\x08\x00", "member a.npy is compressed"),
        ("a", 14, b"\xff", "the two headers of member a.npy disagree"),  # checksum
        ("a", 18, struct.pack("<2L", 200, 200), "a ZIP64 extra field is damaged"),
        ("a", 48, b"\xff", "member a.npy is compressed"),  # the size, not the stored size
        ("a", 30, b"c", "the two headers of member a.npy disagree"),
        ("a", 30, b"\xff", "a member has an unreadable name"),
        ("a", 37, b"\xff", "an extra field is damaged"),
        ("b", 30, b"c", "the two headers of member b.npy disagree"),
        ("directory a", 0, b"XX", "its directory is damaged"),
        ("directory a", 8, b"\x01\x00", "member a.npy is encrypted, or its size stands behind it"),
        ("directory a", 10, b"\x08\x00", "member a.npy is compressed"),
        ("directory a", 16, b"\xff", "the two headers of member a.npy disagree"),
        ("directory a", 20, struct.pack("<2L", 10**6, 10**6), "the two headers of member a.npy disagree"),
        ("directory a", 20, struct.pack("<2L", 10, 131), "member a.npy is compressed"),
        ("directory a", 20, struct.pack("<2L", 2**32 - 1, 2**32 - 1), "a ZIP64 extra field is missing"),
        ("directory a", 32, b"\x01", "its directory is damaged"),  # a comment
        ("directory a", 34, b"\x01", "its directory is damaged"),  # another disk
        ("directory a", 42, struct.pack("<L", 1), "member a.npy does not begin where the one before it ends"),
        ("directory b", 42, struct.pack("<L", 0), "member b.npy does not begin where the one before it ends"),
        ("directory b", 46, b"a", "member a.npy occurs twice"),
        ("directory b", 28, b"\xff\xff", "a member has a name of more than 256 bytes"),
        ("directory b", 28, b"\xff\x00", "it is cut off"),  # a name that reaches beyond the end
        ("directory b", 46, b"\x00", "a member has an unreadable name"),  # which zipfile takes for the name's end
        ("directory b", 46, b"\xc3\xbc", "a member has an unreadable name"),  # UTF-8, and no flag that says so
        ("directory b", 8, b"\x00\x08", "the two headers of member b.npy disagree"),  # one of them is UTF-8
        ("a", 37, b"\x99", "an extra field is damaged"),  # of a kind that other readers may know
        ("a", 41, b"x", "an extra field is damaged"),  # something hidden in the padding
        ("end", 8, struct.pack("<2H", 20_000, 20_000), "it has 20000 members, more than 16384"),
        ("end", 4, b"\x01", "its end record is unlike that of a checkpoint"),
        ("end", 8, struct.pack("<2H", 1, 2), "its end record is unlike that of a checkpoint"),
        ("end", 8, struct.pack("<2H", 1, 1), "there is something between the members and the end"),
        ("end", 20, b"\x01", "its end record is unlike that of a checkpoint"),
        ("end", 12, b"\x00", "its directory is not where its end record says"),
        ("end", 16, b"\xff", "its directory is not where its end record says"),
        ("end", 16, b"\xff\xff\xff\xff", "its ZIP64 end record is missing"),
    ],
)
def test_damage_to_the_structure_is_refused(record, place, value, reason, two_members, path):
    content, records = two_members
    start = records[record] + place
    assert content[start : start + len(value)] != value, "this would be no damage"
    content[start : start + len(value)] = value
    path.write_bytes(content)
    assert_refused(path, reason)


def test_a_member_that_reaches_into_the_directory_is_refused(two_members, path):
    content, records = two_members
    # The sizes end the local header, in the ZIP64 field.
    local, central = content.index(b"\x93NUMPY", records["b"]) - 16, records["directory b"] + 20
    assert content[local : local + 16] == struct.pack("<2Q", 131, 131)
    assert content[central : central + 8] == struct.pack("<2L", 131, 131)
    content[local : local + 16] = struct.pack("<2Q", 132, 132)
    content[central : central + 8] = struct.pack("<2L", 132, 132)
    path.write_bytes(content)
    assert_refused(path, "member b.npy reaches beyond its place")


@pytest.mark.parametrize(("record", "field"), [("directory a", 16), ("end", 12)], ids=["before", "behind"])
def test_bytes_around_the_directory_are_refused(record, field, two_members, path):
    """The end record is right about them: it says where the directory begins (16) and how long it is (12)."""
    content, records = two_members
    end = records["end"]
    (number,) = struct.unpack("<L", content[end + field : end + field + 4])
    content[end + field : end + field + 4] = struct.pack("<L", number + 7)
    path.write_bytes(content[: records[record]] + bytes(7) + content[records[record] :])
    assert_refused(path, "there is something between the members and the end")


def test_a_directory_in_zip64_is_read(two_members, path):
    """What zipfile writes for more than 65,535 members or 4 GiB, around members that need neither."""
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
    with pytest.raises(CheckpointError, match=r"cannot read .*: its directory is not where its end record says"):
        npz.Reader(path)
    path.write_bytes(content[:end] + record + locator[:8] + b"\x00" + locator[9:] + escaped)
    assert_refused(path, "its ZIP64 end record is damaged")
    path.write_bytes(content[:end] + record + locator[:-4] + b"\x02\x00\x00\x00" + escaped)  # of two disks
    assert_refused(path, "its ZIP64 end record is damaged")
    path.write_bytes(content[:end] + record + locator + escaped[:8] + b"\x03\x00\x03\x00" + escaped[12:])
    assert_refused(path, "its two end records disagree")


def test_a_field_that_is_given_twice_is_refused(path):
    """Readers differ in which of the two they take."""
    npz.write(path, {"n" * 50: np.arange(3)})
    content = path.read_bytes()
    start, (length,) = 30 + 54, struct.unpack("<H", content[28:30])
    padding, zip64 = content[start : start + length - 20], content[start + length - 20 : start + length]
    assert zip64[:4] == struct.pack("<2H", 1, 16)
    assert len(padding) == 24  # as long as an empty one and another field of the other kind
    path.write_bytes(content[:start] + struct.pack("<2H", 0x4754, 0) + zip64 * 2 + content[start + length :])
    assert_refused(path, "an extra field is damaged")


def test_a_pipe_is_refused_and_not_waited_for(path):
    os.mkfifo(path)
    assert_refused(path, "it is a pipe, which cannot be mapped")


def test_more_or_longer_names_than_can_be_read_are_not_written(path, monkeypatch):
    npz.write(path, {"n" * 252: np.arange(3)})
    assert npz.Reader(path).names == ["n" * 252]
    message = r"^cannot write .*: a file holds at most 16384 members with names of at most 256 bytes; leave some out$"
    with pytest.raises(CheckpointError, match=message):
        npz.write(path, {"ü" * 127: np.arange(3)})
    monkeypatch.setattr(archive, "MOST_MEMBERS", 2)
    npz.write(path, {"a": np.arange(3), "b": np.arange(3)})
    assert npz.Reader(path).names == ["a", "b"]
    with pytest.raises(CheckpointError, match="a file holds at most 2 members"):
        npz.write(path, {"a": np.arange(3), "b": np.arange(3), "c": np.arange(3)})


def test_a_file_larger_than_the_memory_is_opened(path):
    """Linux refuses private mappings of more than its memory, unless told that little of it will be written to."""
    with path.open("wb") as file:
        file.truncate(1 << 42)  # 4 TiB, none of it on the disk
    assert_refused(path, "it is not a zip archive")  # which only who has mapped it can know


def test_numbers_that_look_like_the_mark_of_a_pickle_are_none(path):
    array = np.frombuffer(b"|O'|O\n|O" * 8, np.uint8)
    npz.write(path, {"a": array})
    np.testing.assert_array_equal(npz.Reader(path).array("a"), array)


class Sparse(io.FileIO):
    """A file that leaves a hole where zeros are written, as long as they come by the megabyte."""

    def write(self, data):
        if len(data) >= 2**20 and not np.frombuffer(data, np.uint8).any():
            self.seek(len(data), os.SEEK_CUR)
            return len(data)
        return super().write(data)


def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def test_a_file_beyond_4_gib_is_written_and_read(path):
    """Sizes and offsets that no longer fit into 31 and 32 bits, on both sides of either border; nearly all holes."""
    arrays = {
        "before": np.arange(5, dtype=np.int16),
        "over_2_gib": np.zeros(2**31 + 5, np.uint8),
        "between": np.arange(7, dtype=np.float32),
        "over_4_gib": np.zeros((2**32 + 24) // 8, np.float64),
        "behind": np.arange(9, dtype=np.float64),
    }
    for name in ("over_2_gib", "over_4_gib"):
        arrays[name][[0, -1]] = 3, 5
    on_linux = os.path.exists("/proc/self/clear_refs")
    if on_linux:
        Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory counts from here
    before = memory("VmRSS") if on_linux else 0
    with Sparse(path, "w+b") as file, npz.Writer(file) as writer:  # pyright: ignore[reportArgumentType]
        for name, array in arrays.items():
            writer.write_array(name, array)
    assert path.stat().st_size > 2**32 + 2**31
    assert path.stat().st_blocks * 512 < 200e6, "the disk is filled with zeros"

    reader = npz.Reader(path)
    assert reader.names == list(arrays)
    with zipfile.ZipFile(path) as archive, np.load(path) as theirs, path.open("rb") as file:
        offsets = {member.filename: member.header_offset for member in archive.infolist()}
        assert [offset >> 31 for offset in offsets.values()] == [0, 0, 1, 1, 3]
        for name, array in arrays.items():
            found, large = reader.array(name), name.startswith("over")
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(found[[0, 1, -2, -1]], array[[0, 1, -2, -1]])
            file.seek(offsets[f"{name}.npy"] + 26)
            payload = file.tell() + 4 + sum(struct.unpack("<2H", file.read(4)))
            assert payload % 64 == 0
            assert found.ctypes.data % 64 == 0
            with archive.open(f"{name}.npy") as member:
                assert np.lib.format.read_magic(member) == (1, 0)
                shape, _, dtype = np.lib.format.read_array_header_1_0(member)
                assert (shape, dtype) == (array.shape, array.dtype)
                assert member.read(8) == array[:8].tobytes()[:8]
            if not large:
                np.testing.assert_array_equal(theirs[name], array)  # which checks the checksum, too
    if on_linux:
        assert memory("VmHWM") - before < 200e6
    path.unlink()


BFLOAT16_ARRAYS = {
    "scalar": np.array(1.5, BFLOAT16),
    "matrix": np.arange(6).reshape(2, 3).astype(BFLOAT16),
    "transposed": np.arange(6).reshape(2, 3).astype(BFLOAT16).T,
    "empty": np.zeros((0, 2), BFLOAT16),
    "odd": np.array([0x7FC1, 0x8000, 0x0001, 0xFF80], np.uint16).view(BFLOAT16),  # NaN, -0, subnormal, infinity
    "integers": np.arange(3, dtype=np.uint16),
}


def test_bfloat16_comes_back_as_bfloat16_and_integers_as_integers(path):
    npz.write(path, BFLOAT16_ARRAYS)
    found = npz.read(path)
    assert list(found) == list(BFLOAT16_ARRAYS)
    for name, array in BFLOAT16_ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == array.tobytes(), name
    with np.load(path) as theirs:  # NumPy alone sees the bits
        assert json.loads(theirs["bfloat16.json"]) == ["scalar", "matrix", "transposed", "empty", "odd"]
        for name, array in BFLOAT16_ARRAYS.items():
            assert theirs[name].dtype == np.uint16, name
            assert theirs[name].tobytes() == array.tobytes(), name


def test_without_bfloat16_there_is_no_list_of_them(path):
    npz.write(path, {"half": np.zeros(2, np.float16)})
    assert npz.Reader(path).members == ["half.npy"]
    assert npz.read(path)["half"].dtype == np.float16


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "bfloat16.json is no list of names"),
        (b"\xff\xfe", "bfloat16.json is no list of names"),
        (b'"ab"', "bfloat16.json is no list of names"),
        (b'{"a": 1}', "bfloat16.json is no list of names"),
        (b"1", "bfloat16.json is no list of names"),
        (b"null", "bfloat16.json is no list of names"),
        (b'["a", 1]', "bfloat16.json is no list of names"),
        (b'[["a"]]', "bfloat16.json is no list of names"),
        (b"[" * 100_000, "bfloat16.json is no list of names"),
        (b'["missing"]', "bfloat16.json names 'missing', which is no array of uint16"),
        (b'["b"]', "bfloat16.json names 'b', which is no array of uint16"),
        (b" " * 2**20 + b"[]", "member bfloat16.json has more than 1048576 bytes"),
    ],
)
def test_a_wrong_list_of_bfloat16_is_refused(content, reason, path):
    with path.open("w+b") as file, npz.Writer(file) as writer:
        writer.write_array("a", np.zeros(2, np.uint16))
        writer.write_array("b", np.zeros(2, np.float64))
        writer.write_bytes("bfloat16.json", content)
    with pytest.raises(CheckpointError, match=f"^{re.escape(f'cannot read {path}: {reason}; give an undamaged')}"):
        npz.read(path)


def test_a_name_given_twice_is_bfloat16_once(path):
    with path.open("w+b") as file, npz.Writer(file) as writer:
        writer.write_array("a", np.zeros(2, np.uint16))
        writer.write_bytes("bfloat16.json", b'["a", "a"]')
    assert npz.read(path)["a"].dtype == BFLOAT16


@given(st.lists(st.tuples(st.integers(0, 10**4), st.integers(1, 255)), min_size=1, max_size=4), st.booleans())
@settings(deadline=None, max_examples=150)
def test_random_damage_is_refused_or_harmless_but_never_another_error(changes, to_structure):
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(1.5)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "arrays.npz"
        npz.write(path, arrays)
        content = bytearray(path.read_bytes())
        directory = content.index(b"PK\x01\x02")
        for place, difference in changes:
            start = directory if to_structure else 0
            content[start + place % (len(content) - start)] ^= difference
        path.write_bytes(content)
        try:
            reader = npz.Reader(path)
            sizes = [reader.array(name).size for name in reader.names]
        except CheckpointError:
            return
        assert len(sizes) == 2


@pytest.mark.parametrize("dtype", [">f4", "<c8", "<U3", "|S3", "<M8[s]", "|V4"])
def test_dtypes_that_are_no_plain_numbers_are_refused(dtype, path):
    write_members(path, a=npy((1,), bytes(np.dtype(dtype).itemsize), dtype))
    with pytest.raises(
        CheckpointError, match=r"cannot read .*: a has (dtype .*, which no checkpoint has|an unreadable)"
    ):
        npz.Reader(path).array("a")


def test_a_record_is_refused(path):
    content = io.BytesIO()
    np.save(content, np.zeros(1, [("x", "<f4"), ("y", "<f4")]))
    write_members(path, a=content.getvalue())
    assert_array_refused(path, "a has an unreadable header")


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2), (0,), (), (2, 1, 2), (10**17,), (2**32, 2**32)])
def test_a_size_that_disagrees_with_the_header_is_refused(shape, path):
    write_members(path, a=npy(shape, bytes(8)))  # two float32
    assert_array_refused(path, "a does not have the size that its header states")


def test_fortran_order_is_refused(path):
    content = io.BytesIO()
    np.save(content, np.asfortranarray(np.zeros((2, 3))))
    write_members(path, a=content.getvalue())
    assert_array_refused(path, "a is stored in Fortran order")


@pytest.mark.parametrize("content", [b"", b"\x93NUM", b"\x93NUMPX\x01\x00\x02\x00{}", b"\x93NUMPY\x02\x00\x02\x00{}"])
def test_what_is_no_npy_of_version_1_is_refused(content, path):
    write_members(path, a=content)
    assert_array_refused(path, "a is no array of .npy version 1.0")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b"{'descr': (",
        b"{[]: 1}",
        b"{1: 2, 'a': 3}",
        b"-" * 9000 + b"1",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1L,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (01,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (True,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1, " * 64 + b"1), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 5000 + b",), }",
        b"{'descr': (), 'fortran_order': False, 'shape': (1,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1, }",
    ],
)
def test_an_unreadable_header_is_refused(header, path):
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    write_members(path, a=b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(4))
    assert_array_refused(path, "a has an unreadable header")


def test_a_header_that_is_cut_off_is_refused(path):
    write_members(path, a=npy((1,), b"")[:-1])
    assert_array_refused(path, "a has an unreadable header")


def test_a_missing_member_is_refused(path):
    npz.write(path, {"a": np.arange(3)})
    reader = npz.Reader(path)
    with pytest.raises(CheckpointError, match=r"member b\.npy is missing; give an undamaged file that Triglot wrote"):
        reader.array("b")
    with pytest.raises(
        CheckpointError, match=r"member manifest\.json is missing; give an undamaged file that Triglot wrote"
    ):
        reader.read_bytes("manifest.json", 100)
