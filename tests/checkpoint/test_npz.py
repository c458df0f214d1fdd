"""The ``.npz`` container: NumPy and zip tools read it, and its arrays map straight into memory."""

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

from triglot.shared.arrays import BFLOAT16
from triglot.shared.checkpoint import npz, zip_structure
from triglot.shared.errors import CheckpointError

DTYPES = [f"{order}{kind}" for order in "<>" for kind in ("f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8")]
DTYPES += ["|i1", "|u1", "|b1"]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "arrays.npz"


def payload_offsets(path):
    """Where the bytes of each member begin in the file, read from its local zip header."""
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
def test_numpy_and_the_reader_read_what_was_written(arrays):
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


def test_the_layout_in_memory_does_not_change_the_file(tmp_path):
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
    # With names of 1 to 130 bytes, the padding takes every value, including those too small for a header.
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


def test_bytes_are_stored_under_their_name(path):
    with path.open("w+b") as file:
        writer = npz.Writer(file)
        writer.write_array("a", np.arange(3))
        writer.write_bytes("manifest.json", b"{}")
        writer.close()
    reader = npz.Reader(path)
    assert reader.names == ["a"]
    assert reader.read_bytes("manifest.json", 100) == b"{}"
    assert payload_offsets(path)["manifest.json"] % 64 == 0


def test_an_array_larger_than_one_chunk_is_complete(path):
    array = np.arange(2**24 + 5, dtype=np.uint8)  # written in chunks of 2^24 bytes
    npz.write(path, {"large": array})
    np.testing.assert_array_equal(npz.Reader(path).array("large"), array)


def test_zip_tools_accept_the_file(path):
    npz.write(path, {"a": np.arange(1000.0), "b": np.zeros((0, 3)), "c": np.array(1)})
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["a.npy", "b.npy", "c.npy"]
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {stat.filemode(member.external_attr >> 16) for member in archive.infolist()} == {"?rw-r--r--"}


def test_writing_into_an_array_does_not_change_the_file_or_other_readers(path):
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


def test_an_unaligned_array_is_refused(path):
    np.savez(path, a=np.zeros(100))  # NumPy does not align members
    assert payload_offsets(path)["a.npy"] % 64
    with pytest.raises(CheckpointError, match="a does not begin at a multiple of 64 bytes"):
        npz.Reader(path).array("a")


@pytest.mark.parametrize("array", [np.array([None]), np.array([(1, "x")], [("a", "i4"), ("b", "O")])])
def test_arrays_of_objects_are_not_written(array, path):
    with path.open("w+b") as file:
        writer = npz.Writer(file)
        with pytest.raises(CheckpointError, match="weights holds Python objects; expected an array of numbers"):
            writer.write_array("weights", array)
        writer.close()
    assert npz.Reader(path).names == []


def test_names_beyond_the_limits_of_the_reader_are_not_written(path, monkeypatch):
    npz.write(path, {"n" * 252: np.arange(3)})
    assert npz.Reader(path).names == ["n" * 252]
    with pytest.raises(CheckpointError, match="at most 16384 members with names of at most 256 bytes"):
        npz.write(path, {"ü" * 127: np.arange(3)})
    monkeypatch.setattr(zip_structure, "MOST_MEMBERS", 2)
    npz.write(path, {"a": np.arange(3), "b": np.arange(3)})
    assert npz.Reader(path).names == ["a", "b"]
    with pytest.raises(CheckpointError, match="a file holds at most 2 members"):
        npz.write(path, {"a": np.arange(3), "b": np.arange(3), "c": np.arange(3)})


def test_numbers_that_look_like_a_pickled_array_are_accepted(path):
    array = np.frombuffer(b"|O'|O\n|O" * 8, np.uint8)
    npz.write(path, {"a": array})
    np.testing.assert_array_equal(npz.Reader(path).array("a"), array)


class Sparse(io.FileIO):
    """A file that leaves a hole instead of writing a megabyte or more of zeros."""

    def write(self, data):
        if len(data) >= 2**20 and not np.frombuffer(data, np.uint8).any():
            self.seek(len(data), os.SEEK_CUR)
            return len(data)
        return super().write(data)


def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def test_a_file_beyond_4_gib_is_written_and_read(path):
    """Sizes and offsets on both sides of 31 and 32 bits. The file consists almost only of holes."""
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
        Path("/proc/self/clear_refs").write_text("5")  # restart the peak of resident memory
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
                np.testing.assert_array_equal(theirs[name], array)  # verifies the checksum too
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


def test_bfloat16_and_integers_keep_their_dtypes(path):
    npz.write(path, BFLOAT16_ARRAYS)
    found = npz.read(path)
    assert list(found) == list(BFLOAT16_ARRAYS)
    for name, array in BFLOAT16_ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == array.tobytes(), name
    with np.load(path) as theirs:  # NumPy alone reads the bits
        assert json.loads(theirs["bfloat16.json"]) == ["scalar", "matrix", "transposed", "empty", "odd"]
        for name, array in BFLOAT16_ARRAYS.items():
            assert theirs[name].dtype == np.uint16, name
            assert theirs[name].tobytes() == array.tobytes(), name


def test_without_bfloat16_no_list_is_written(path):
    npz.write(path, {"half": np.zeros(2, np.float16)})
    assert npz.Reader(path).members == ["half.npy"]
    assert npz.read(path)["half"].dtype == np.float16


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "bfloat16.json is not a list of names"),
        (b"\xff\xfe", "bfloat16.json is not a list of names"),
        (b'"ab"', "bfloat16.json is not a list of names"),
        (b'{"a": 1}', "bfloat16.json is not a list of names"),
        (b"1", "bfloat16.json is not a list of names"),
        (b"null", "bfloat16.json is not a list of names"),
        (b'["a", 1]', "bfloat16.json is not a list of names"),
        (b'[["a"]]', "bfloat16.json is not a list of names"),
        (b"[" * 100_000, "bfloat16.json is not a list of names"),
        (b'["missing"]', "bfloat16.json names 'missing', which is not an array of uint16"),
        (b'["b"]', "bfloat16.json names 'b', which is not an array of uint16"),
        (b" " * 2**20 + b"[]", "member bfloat16.json has more than 1048576 bytes"),
    ],
)
def test_a_wrong_list_of_bfloat16_is_refused(content, problem, path):
    with path.open("w+b") as file, npz.Writer(file) as writer:
        writer.write_array("a", np.zeros(2, np.uint16))
        writer.write_array("b", np.zeros(2, np.float64))
        writer.write_bytes("bfloat16.json", content)
    with pytest.raises(CheckpointError, match=f"^{re.escape(f'cannot read {path}: {problem}')}"):
        npz.read(path)


def test_a_repeated_name_in_the_list_is_accepted(path):
    with path.open("w+b") as file, npz.Writer(file) as writer:
        writer.write_array("a", np.zeros(2, np.uint16))
        writer.write_bytes("bfloat16.json", b'["a", "a"]')
    assert npz.read(path)["a"].dtype == BFLOAT16


@given(st.lists(st.tuples(st.integers(0, 10**4), st.integers(1, 255)), min_size=1, max_size=4), st.booleans())
@settings(deadline=None, max_examples=150)
def test_random_damage_is_refused_or_harmless(changes, to_structure):
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


def test_a_missing_member_is_refused(path):
    npz.write(path, {"a": np.arange(3)})
    reader = npz.Reader(path)
    with pytest.raises(CheckpointError, match=r"member b\.npy is missing"):
        reader.array("b")
    with pytest.raises(CheckpointError, match=r"member manifest\.json is missing"):
        reader.read_bytes("manifest.json", 100)
