"""``.pt`` files are read as PyTorch reads them, and PyTorch reads those that Triglot writes."""

import collections
import zipfile

import numpy as np
import pytest
import torch
from torch_archives import assert_reads_as_torch, assert_refused, numbers

from triglot.shared import files
from triglot.shared.arrays import BFLOAT16, FLOATS
from triglot.shared.porting.containers import torch as torch_file

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (2, 3, 4, 5), (0,), (3, 0, 2)], ids=str)
def test_every_dtype_and_shape_is_read(dtype, shape, path):
    torch.save({"tensor": (numbers(*shape) * 9).to(dtype)}, path)
    assert_reads_as_torch(path)


def test_views_of_shared_storages_are_read(path):
    base = numbers(6, 8)
    views = {
        "base": base,
        "transposed": base.T,
        "row": base[3],
        "column": base[:, 5],
        "steps": base[1::2, ::3],
        "permuted": base.view(2, 3, 8).permute(2, 0, 1),
        "expanded": base[0, :1].expand(7),
        "parameter": torch.nn.Parameter(base[2:4]),
        "itself": base,
    }
    torch.save(views, path)
    found = assert_reads_as_torch(path)
    assert np.shares_memory(found["base"], found["column"])
    assert path.stat().st_size < 5000  # one storage of 192 bytes


@pytest.mark.parametrize("order", ["plain", "ordered", "module"])
def test_dictionaries_and_parameters_are_read(order, path):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    tensors = module.state_dict()
    if order == "plain":
        tensors = {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items() if tensor.is_floating_point()}
    elif order == "ordered":
        tensors = collections.OrderedDict(tensors)
    torch.save(tensors, path)
    assert_reads_as_torch(path)


def test_an_empty_state_dict_is_read(path):
    torch.save({}, path)
    assert torch_file.read(path) == {}


def test_big_endian_numbers_are_swapped(path):
    tensors = {
        "wide": numbers(3, 4, dtype=torch.float64),
        "half": numbers(5, dtype=torch.bfloat16),
        "byte": torch.arange(3).byte(),
    }
    torch.save(tensors, path)
    plain = {name: array.copy() for name, array in torch_file.read(path).items()}

    def swap(name, content):
        if name.endswith("/byteorder"):
            return b"big"
        if "/data/" in name:
            size = {"0": 8, "1": 2, "2": 1}[name.rsplit("/", 1)[1]]
            return np.frombuffer(content, f"u{size}").byteswap().tobytes()
        return content

    rewrite(path, swap)
    swapped = torch_file.read(path)
    for name, array in plain.items():
        assert swapped[name].dtype == array.dtype
        np.testing.assert_array_equal(swapped[name], array)
    rewrite(path, lambda name, content: b"middle" if name.endswith("/byteorder") else content)
    assert_refused(path, "its byteorder is b'middle'; expected little or big")


def test_a_file_without_byteorder_is_little_endian(path):
    torch.save({"a": numbers(3)}, path)
    plain = torch_file.read(path)["a"].copy()
    rewrite(path, lambda name, content: None if name.endswith("/byteorder") else content)
    np.testing.assert_array_equal(torch_file.read(path)["a"], plain)


def write(tensors, path):
    with files.writing(path) as file:
        torch_file.write(file, tensors)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mapped", [False, True])
def test_torch_reads_written_files(dtype, mapped, path):
    generator = np.random.default_rng(0)
    square = generator.normal(size=(5, 5)).astype(FLOATS[dtype])
    tensors = {
        **{"square": square, "transposed": square.T, "steps": square[::2, 1], "empty": square[:0]},
        **{"one": square[0, 0:1], "scalar": np.zeros((), FLOATS[dtype])},
        "deep": generator.normal(size=(2, 1, 3, 2, 2)).astype(FLOATS[dtype]),
        "a name, with \u00e9 and spaces": np.ones(1, FLOATS[dtype]),
    }
    write(tensors, path)
    loaded = torch.load(path, weights_only=True, mmap=mapped)
    assert type(loaded) is collections.OrderedDict
    assert list(loaded) == list(tensors)
    for name, array in tensors.items():
        assert loaded[name].dtype == getattr(torch, dtype)
        assert tuple(loaded[name].shape) == array.shape
        assert bytes(loaded[name].untyped_storage()) == array.tobytes()
        assert not loaded[name].requires_grad
    read = torch_file.read(path)
    for name, array in tensors.items():
        np.testing.assert_array_equal(read[name], array)


def test_the_same_tensors_give_the_same_bytes(path):
    tensors = {"a": np.arange(3.0), "b": np.ones((2, 2), BFLOAT16)}
    write(tensors, path)
    first = path.read_bytes()
    write(tensors, path)
    assert path.read_bytes() == first


@pytest.mark.long
def test_thousands_of_tensors_are_written_and_read(path):
    tensors = {f"layers.{number}.weight": np.full(1, number, np.float32) for number in range(5000)}
    write(tensors, path)
    assert assert_reads_as_torch(path).keys() == tensors.keys()


def rewrite(path, change):
    """Change the content of each member; None removes it."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    contents = {name: change(name, content) for name, content in members.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            if content is not None:
                archive.writestr(name, content)
