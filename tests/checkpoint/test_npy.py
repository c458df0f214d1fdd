"""Headers of ``.npy`` arrays are parsed strictly, and nothing in them is evaluated."""

import io
import re
import struct

import numpy as np
import pytest

from triglot.shared.checkpoint import npz
from triglot.shared.errors import CheckpointError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "arrays.npz"


def npy(shape, payload, dtype="<f4"):
    """One ``.npy`` with a header that may not fit the payload."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": dtype, "fortran_order": False, "shape": shape})
    return content.getvalue() + payload


def saved(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def assert_refused(path, content, problem):
    """A container whose member ``a.npy`` is ``content`` opens, but its array is refused."""
    with path.open("w+b") as file, npz.Writer(file) as writer:
        writer.write_bytes("a.npy", content)
    reader = npz.Reader(path)
    with pytest.raises(CheckpointError, match=f"^{re.escape(f'cannot read {path}: a ')}{problem}"):
        reader.array("a")


@pytest.mark.parametrize("dtype", [">f4", "<c8", "<U3", "|S3", "<M8[s]", "|V4"])
def test_dtypes_other_than_plain_numbers_are_refused(dtype, path):
    content = npy((1,), bytes(np.dtype(dtype).itemsize), dtype)
    assert_refused(path, content, "has (dtype .*, which checkpoints do not have|an unreadable header)")


def test_records_and_fortran_order_are_refused(path):
    assert_refused(path, saved(np.zeros(1, [("x", "<f4"), ("y", "<f4")])), "has an unreadable header")
    assert_refused(path, saved(np.asfortranarray(np.zeros((2, 3)))), "is stored in Fortran order")


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2), (0,), (), (2, 1, 2), (10**17,), (2**32, 2**32)])
def test_a_size_that_disagrees_with_the_header_is_refused(shape, path):
    assert_refused(path, npy(shape, bytes(8)), "does not have the size that its header states")  # two float32


def test_an_impossible_shape_is_refused(path):
    assert_refused(path, npy((0, 10**17, 10**17), b""), "has the impossible shape")


@pytest.mark.parametrize("content", [b"", b"\x93NUM", b"\x93NUMPX\x01\x00\x02\x00{}", b"\x93NUMPY\x02\x00\x02\x00{}"])
def test_other_formats_and_versions_are_refused(content, path):
    assert_refused(path, content, r"is not an array of \.npy version 1\.0")


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
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(4)
    assert_refused(path, content, "has an unreadable header")


def test_a_header_that_is_cut_off_is_refused(path):
    assert_refused(path, npy((1,), b"")[:-1], "has an unreadable header")
