"""``.msgpack`` files are read as Flax reads them, without Flax, and refused in one line if anything is wrong."""

import re
import resource
import subprocess
import sys

import ml_dtypes
import msgpack
import numpy as np
import pytest
from flax import serialization
from hypothesis import given, settings
from hypothesis import strategies as st

import triglot
from triglot.shared import files
from triglot.shared.arrays import BFLOAT16
from triglot.shared.errors import PortingError
from triglot.shared.porting import containers
from triglot.shared.porting.containers import msgpack as container

DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint64", "bool")
ARRAY = msgpack.ExtType(1, msgpack.packb(((2,), "float32", bytes(8))))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.msgpack"


def array(shape, dtype):
    return (np.random.default_rng(0).standard_normal(shape) * 9).astype(BFLOAT16 if dtype == "bfloat16" else dtype)


def assert_refused(path, problem):
    """The refusal is one line, and begins with the path and the problem."""
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot read {path}: {problem}')}") as raised:
        container.read(path)
    assert "\n" not in str(raised.value)


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name].view(np.uint8), value.view(np.uint8), err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_is_read_and_written_as_flax_does(dtype, path):
    shapes = {"row": (5,), "matrix": (3, 4), "deep": (2, 3, 1, 5), "empty": (0, 3)}
    tree = {"a": {name: array(shape, dtype) for name, shape in shapes.items()}, "b": array((2, 2), dtype)}
    path.write_bytes(serialization.to_bytes(tree))
    found = container.read(path)
    expected = {**{f"a.{name}": value for name, value in tree["a"].items()}, "b": tree["b"]}
    assert_equal(found, expected)
    with files.writing(path) as file:
        container.write(file, {**expected, "a.turned": expected["a.matrix"].T})
    restored = serialization.msgpack_restore(path.read_bytes())
    assert_equal(restored["a"], {**tree["a"], "turned": np.ascontiguousarray(tree["a"]["matrix"].T)})


def test_scalars_and_arrays_of_jax_are_read(path):
    from jax import numpy as jnp

    path.write_bytes(serialization.to_bytes({"scalar": np.float32(2.5), "jax": jnp.ones((2, 3), jnp.bfloat16)}))
    found = container.read(path)
    assert found["scalar"] == np.float32(2.5)
    assert found["scalar"].shape == ()
    np.testing.assert_array_equal(found["jax"], np.ones((2, 3), ml_dtypes.bfloat16), strict=True)


def test_large_arrays_are_chunked_as_in_flax(path, monkeypatch):
    """Flax splits arrays of more than 2^30 bytes; here both split those of more than 64."""
    assert container._LONGEST_CHUNK == serialization.MAX_CHUNK_SIZE
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 64)
    monkeypatch.setattr(container, "_LONGEST_CHUNK", 64)
    tree = {"large": np.arange(210.0).reshape(5, 42), "small": np.arange(3.0)}
    theirs = serialization.to_bytes(tree)
    assert b"__msgpack_chunked_array__" in theirs
    path.write_bytes(theirs)
    assert_equal(container.read(path), tree)
    with files.writing(path) as file:
        container.write(file, tree)
    assert path.read_bytes() == theirs
    assert_equal(serialization.msgpack_restore(path.read_bytes()), tree)


def test_the_content_shows_the_format(tmp_path):
    (tmp_path / "weights").write_bytes(serialization.to_bytes({"a": np.ones(2)}))
    assert containers.find(tmp_path / "weights") is container


@pytest.mark.parametrize("name", ["bert-base-tiny", "translation-tiny"])
def test_a_state_for_nnx_survives(name, make_checkpoint, path):
    checkpoint = make_checkpoint(name)
    triglot.port(checkpoint, path, target_dialect="nnx")
    assert triglot.port(path, config=name).digest == checkpoint.digest


def test_names_that_cannot_be_nested_are_refused(path):
    with pytest.raises(PortingError, match="a is also the beginning of another name"), files.writing(path) as file:
        container.write(file, {"a": np.ones(2), "a.b": np.ones(2)})
    assert not path.exists()


def pairs(*entries):
    """A map whose keys may occur twice."""
    packer = msgpack.Packer()
    return packer.pack_map_header(len(entries)) + b"".join(packer.pack(part) for entry in entries for part in entry)


CHUNKS = {"0": msgpack.ExtType(1, msgpack.packb(((2,), "float32", bytes(8))))}
CHUNKED = {"__msgpack_chunked_array__": True, "shape": {"0": 2}, "chunks": CHUNKS}
DAMAGED = "its message is damaged; restore the file, or save the parameters again with flax.serialization.to_bytes"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([ARRAY], "its '' is a list, expected nested maps of arrays"),
        ({"a": [ARRAY]}, "its 'a' is a list, expected nested maps of arrays"),
        ({"a": {"b": "text"}}, "its 'a.b' is a str, expected nested maps of arrays"),
        ({"a.b": ARRAY}, "its 'a.b' in '' is not the name of a part"),
        ({"": ARRAY}, "its '' in '' is not the name of a part"),
        ({3: ARRAY}, DAMAGED),
        ({"a": 3}, "its 'a' is a int, expected nested maps of arrays"),
        ({"a": msgpack.ExtType(2, msgpack.packb((1.0, 2.0)))}, "one of its values is a complex number, expected an"),
        ({"a": msgpack.ExtType(9, b"")}, "one of its values is of the extension type 9, expected an array"),
        ({"a": msgpack.ExtType(1, msgpack.packb(((3,), "float32", bytes(8))))}, "one of its arrays does not have a"),
        ({"a": msgpack.ExtType(1, msgpack.packb(((-2,), "float32", bytes(8))))}, "one of its arrays does not have a"),
        ({"a": msgpack.ExtType(1, msgpack.packb(((2,), "object", bytes(16))))}, "one of its arrays does not have a"),
        ({"a": msgpack.ExtType(1, msgpack.packb(((2,), "float32")))}, DAMAGED),
        ({"a": msgpack.ExtType(1, msgpack.packb(((1 << 40, 0), "float32", b"")))}, None),
        ({"a": {**CHUNKED, "more": ARRAY}}, "the chunks of 'a' are not the parts of an array"),
        ({"a": {**CHUNKED, "shape": {"0": 3}}}, "the chunks of 'a' are not the parts of an array"),
        ({"a": {**CHUNKED, "shape": {"1": 2}}}, "the chunks of 'a' are not the parts of an array"),
        ({"a": {**CHUNKED, "chunks": {}}}, "the chunks of 'a' are not the parts of an array"),
        (CHUNKED, "its '__msgpack_chunked_array__' is a bool"),
        (pairs(("a", ARRAY), ("a", ARRAY)), "it holds 'a' twice"),
        (b"\x81\xa1a" * 100 + b"\x80", "its 'a.a."),
        (b"\x81\xa1a" * 9999 + b"\x80", DAMAGED),
        (b"\x81\xa1a" + bytes(9), DAMAGED),
        (b"anything", DAMAGED),
        (b"", "it is empty"),
    ],
    ids=repr,
)
def test_anything_but_nested_maps_of_arrays_is_refused(content, problem, path):
    path.write_bytes(content if isinstance(content, bytes) else msgpack.packb(content))
    if problem is None:
        assert container.read(path)["a"].shape == (1 << 40, 0)
    else:
        assert_refused(path, problem)


def test_a_missing_file_is_refused(path):
    assert_refused(path, "No such file or directory")


# Files that claim more than they hold, and files of many small values. Reading them must not take memory.
BOMBS = {
    "entries": b"\xdf\xff\xff\xff\xff",
    "entries at every depth": b"\xdf\x00\x00\x0f\xff\xa1a" * 1000,
    "array": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "text": b"\x81\xdb\xff\xff\xff\xff",
    "extension": b"\x81\xa1a\xc9\xff\xff\xff\xff\x01",
    "many maps": b"\xde\x0f\xff"
    + b"".join(
        b"\xa4%04x\xde\x0f\xff" % number + b"".join(b"\xa4%04x\x80" % inner for inner in range(0xFFF))
        for number in range(0xFFF // 8)
    ),
}
LIMITED = """
import resource, sys
from pathlib import Path
from triglot.shared.errors import PortingError
from triglot.shared.porting.containers import msgpack
size = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize"))) << 10
for path in sys.argv[1:]:
    limit = size + (64 << 20) + Path(path).stat().st_size
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        msgpack.read(Path(path))
    except PortingError as error:
        print(error)
"""


def test_bombs_take_no_memory(tmp_path):
    assert resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY
    for name, content in BOMBS.items():
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, "-c", LIMITED, *(str(tmp_path / name) for name in BOMBS)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(result.stdout.splitlines()) == len(BOMBS), result.stdout + result.stderr


TREE = {"a": {"b": np.arange(6, dtype=np.float32).reshape(2, 3)}, "c": np.ones(2, np.float16)}


def test_every_truncation_is_refused(path):
    content = serialization.to_bytes(TREE)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(PortingError, match=r"^cannot read .*; "):
            container.read(path)


@settings(max_examples=400)
@given(st.integers(0), st.integers(0, 255), st.integers(0, 3))
def test_a_damaged_file_is_refused_or_read(tmp_path_factory, place, byte, inserted):
    """The format has no checksums, so a number may change. Nothing else may happen."""
    content = bytearray(serialization.to_bytes(TREE))
    start = place % len(content)
    content[start : start + 1 - min(inserted, 1)] = bytes([byte]) * max(inserted, 1)
    path = tmp_path_factory.mktemp("damaged") / "model.msgpack"
    path.write_bytes(content)
    try:
        found = container.read(path)
    except PortingError:
        return
    assert all(type(name) is str and isinstance(value, np.ndarray) for name, value in found.items())
