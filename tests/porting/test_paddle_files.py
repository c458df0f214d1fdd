"""``.pdparams`` files are read as PaddlePaddle reads them, never run, and refused in one line if anything is wrong."""

import inspect
import io
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle.framework import io_utils

from triglot.shared import files
from triglot.shared.arrays import BFLOAT16, Array
from triglot.shared.errors import PortingError
from triglot.shared.porting.containers import paddle as paddle_file

ALONE = "save the state dict alone: paddle.save(model.state_dict(), path)"
DAMAGED = "its pickle is damaged; restore the file"
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
PROTOCOLS = (2, 3, 4)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.pdparams"


def tensor(shape, dtype) -> Any:
    numbers = np.random.default_rng(0).standard_normal(shape) * 9
    return paddle.to_tensor(numbers.astype(np.float32)).astype(dtype)


def dump(value, path, protocol=4):
    """Write a pickle as ``paddle.save`` does."""
    path.write_bytes(pickle.dumps(value, protocol))


def assert_refused(path, problem):
    """The refusal is one line, and begins with the path and the problem."""
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot read {path}: {problem}')}") as raised:
        paddle_file.read(path)
    assert "\n" not in str(raised.value)


def assert_reads_as_paddle(path):
    """Names, order, dtypes, shapes and bits, against Paddle's own reader."""
    expected, found = paddle.load(str(path), return_numpy=True), paddle_file.read(path)
    assert list(found) == list(expected)
    for name, array in expected.items():
        bits = found[name].view(np.uint16) if found[name].dtype == BFLOAT16 else found[name]
        assert bits.dtype == array.dtype
        np.testing.assert_array_equal(bits, array, err_msg=name)
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_is_read(dtype, protocol, path):
    shapes = {"scalar": (), "row": (5,), "matrix": (3, 4), "deep": (2, 3, 1, 5), "empty": (0, 3)}
    paddle.save({name: tensor(shape, dtype) for name, shape in shapes.items()}, str(path), protocol=protocol)
    found = assert_reads_as_paddle(path)
    assert {str(array.dtype) for array in found.values()} == {dtype}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_state_dict_of_a_layer_is_read(protocol, path):
    """With the names of its parameters, an entry that is not a tensor."""
    paddle.save(paddle.nn.Linear(3, 4).state_dict(), str(path), protocol=protocol)
    assert b"StructuredToParameterName@@" in path.read_bytes()
    assert [array.shape for array in assert_reads_as_paddle(path).values()] == [(3, 4), (4,)]


@pytest.mark.parametrize("protocol", [2, 3])
def test_large_arrays_that_are_split_are_joined(protocol, path):
    """Paddle splits arrays of more than 2^30 bytes. Here its own code does so above 64."""
    code = inspect.getsource(io_utils._unpack_saved_dict)
    assert "2**30 - 1" in code
    space = dict(vars(io_utils))
    exec(code.replace("2**30 - 1", "64"), space)
    arrays = {"large": np.arange(40.0).reshape(5, 8), "small": np.arange(3.0)}
    split = space["_unpack_saved_dict"](dict(arrays), protocol)
    assert {"large@@.0", "large@@.1", "UnpackBigParamInfor@@"} < split.keys()
    dump(split, path, protocol)
    np.testing.assert_array_equal(assert_reads_as_paddle(path)["large"], arrays["large"])
    split["UnpackBigParamInfor@@"]["large"]["OriginShape"] = (5, 9)
    dump(split, path, protocol)
    assert_refused(path, "the parts of 'large' do not have the size of the whole; restore the file")


def test_arrays_in_any_order_are_read(path):
    fortran, big = np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(3, dtype=">f4")
    dump({"fortran": fortran, "big": big}, path)
    found = paddle_file.read(path)
    np.testing.assert_array_equal(found["fortran"], fortran)
    np.testing.assert_array_equal(found["big"], big)
    assert found["big"].dtype == np.float32


def test_paddle_loads_what_is_written(path):
    """Into a layer, bit for bit, from views in any order."""
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors: dict[str, Array] = {"weight": matrix.T[::-1].T, "bias": matrix[0] / 7}
    with files.writing(path) as file:
        paddle_file.write(file, tensors)
    layer = paddle.nn.Linear(3, 4)
    assert layer.set_state_dict(paddle.load(str(path))) == ([], [])
    for name, array in tensors.items():
        np.testing.assert_array_equal(layer.state_dict()[name].numpy(), array)
    others = {dtype: np.ones((2, 3)).astype(BFLOAT16 if dtype == "bfloat16" else dtype) for dtype in DTYPES}
    with files.writing(path) as file:
        paddle_file.write(file, {**others, "scalar": np.array(2.5)})
    found = assert_reads_as_paddle(path)
    assert [str(array.dtype) for array in found.values()] == [*DTYPES, "float64"]
    assert found["scalar"].shape == ()


class Canary:
    """An object whose pickle opens a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return open, (str(self.target), "w")


@pytest.mark.parametrize("wrap", [lambda it: it, lambda it: {"a": it}, lambda it: {"a": [it]}, lambda it: {"a": (it,)}])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_in_a_file_is_run(protocol, wrap, path, tmp_path):
    canary = tmp_path / "canary"
    dump(wrap(Canary(canary)), path, protocol)
    assert_refused(path, "it names 'io.open', which is not part of a state dict; " + ALONE)
    assert not canary.exists()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([1, 2], DAMAGED),
        ({"a": [np.ones(2)]}, f"its 'a' is a list, expected an array; {ALONE}"),
        ({"a": {"b": np.ones(2)}}, f"its 'a' is a dict, expected an array; {ALONE}"),
        ({"a": "text"}, f"its 'a' is a str, expected an array; {ALONE}"),
        ({3: np.ones(2)}, f"its 3 is not the name of a tensor; {ALONE}"),
        ({"a": np.array(["text"])}, DAMAGED),
        ({"a": np.array([None])}, DAMAGED),
        ({"UnpackBigParamInfor@@": {"a": {"OriginShape": (2,), "slices": ["b"]}}}, DAMAGED),
        ({"UnpackBigParamInfor@@": {"a": {"OriginShape": (2,), "slices": [["b"]]}}}, DAMAGED),
        ({"UnpackBigParamInfor@@": 3}, DAMAGED),
    ],
    ids=str,
)
def test_anything_but_a_state_dict_is_refused(value, problem, path):
    dump(value, path)
    assert_refused(path, problem)


def test_other_files_are_refused(path):
    assert_refused(path, "No such file or directory")
    path.write_bytes(b"")
    assert_refused(path, "it is empty")
    path.write_bytes(b"anything")
    assert_refused(path, "its pickle is damaged")
    dump({"a": np.ones(2)}, path, 5)
    assert_refused(path, "its pickle has protocol 5; expected 2 to 4; " + ALONE)


@pytest.fixture(scope="module")
def sound():
    """The bytes of a file with two layers, in every protocol."""
    contents = []
    for protocol in PROTOCOLS:
        file = io.BytesIO()
        paddle.save(paddle.nn.Linear(2, 3).state_dict(), file, protocol=protocol)
        contents.append(file.getvalue())
    return contents


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_truncation_is_refused(protocol, sound, path):
    content = sound[protocol - 2]
    for length in range(1, len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(PortingError, match=r"^cannot read .*; "):
            paddle_file.read(path)


@settings(max_examples=400)
@given(st.sampled_from(PROTOCOLS), st.integers(0), st.integers(0, 255), st.integers(0, 3))
def test_a_damaged_file_is_refused_or_read(sound, tmp_path_factory, protocol, place, byte, inserted):
    """The format has no checksums, so a number may change. Nothing else may happen."""
    content = bytearray(sound[protocol - 2])
    start = place % len(content)
    content[start : start + 1 - min(inserted, 1)] = bytes([byte]) * max(inserted, 1)
    path = tmp_path_factory.mktemp("damaged") / "model.pdparams"
    path.write_bytes(content)
    try:
        found = paddle_file.read(path)
    except PortingError:
        return
    assert all(type(name) is str and isinstance(array, np.ndarray) for name, array in found.items())
