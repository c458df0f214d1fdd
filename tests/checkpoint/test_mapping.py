"""Loaded tensors are views of the mapped file: nothing is copied or read before it is used."""

import mmap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from triglot import impls
from triglot.bench.studies import checkpoints
from triglot.shared import checkpoint
from triglot.shared.model.recipes import recipe

needs_proc = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc of Linux")


@pytest.fixture
def saved(make_checkpoint, tmp_path):
    original = make_checkpoint("bert-base-tiny")
    checkpoint.save(original, tmp_path / "model.npz")
    return original, tmp_path / "model.npz"


def base_of(array):
    """The object that an array is a view of, directly or indirectly."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array


@pytest.mark.parametrize(("dtype", "shared"), [("float32", True), ("bfloat16", False), ("float64", False)])
def test_pytorch_uses_the_mapped_file_unless_it_converts(dtype, shared, saved):
    _, path = saved
    loaded = checkpoint.load(path)
    model = impls.build("torch", loaded, dtype=dtype)
    starts = [tensor.ctypes.data for tensor in loaded.tensors.values()]
    start, end = min(starts), max(starts) + path.stat().st_size
    assert end - start < 2 * path.stat().st_size
    parameters = dict(model.backend.transformer.named_parameters())
    assert parameters.keys() == loaded.tensors.keys()
    for name, parameter in parameters.items():
        assert (parameter.data_ptr() == loaded.tensors[name].ctypes.data) == shared, name
        assert isinstance(base_of(loaded.tensors[name]), mmap.mmap), name
        if shared:
            assert start <= parameter.data_ptr() <= parameter.data_ptr() + parameter.nbytes <= end


@needs_proc
def test_the_checkpoint_study_finds_the_same(saved):
    original, path = saved
    sharing = checkpoints.sharing(path)
    assert sharing["inside"] == sharing["parameters"] == len(original.tensors)
    assert sharing["bytes"] == sum(tensor.nbytes for tensor in original.tensors.values())


@needs_proc
def test_one_tensor_is_read_without_the_others(make_checkpoint, tmp_path):
    """The study of a large file, with a small one."""
    config = replace(recipe("bert-base-tiny"), hidden_size=256, layers=3, heads=4, key_size=64, value_size=64)
    original, path = make_checkpoint(replace(config, feed_forward_size=1024)), tmp_path / "model.npz"
    checkpoint.save(original, path)
    (cost,) = checkpoints.measure(checkpoints.one_tensor, path, 1)
    assert cost["bytes"] == 256 * 1024 * 4
    assert path.stat().st_size > 8 * cost["bytes"]
    # The system reads groups of 16 pages. Half a megabyte is for Python itself.
    assert cost["resident"] < cost["bytes"] + 2**19
    assert cost["calls"] < 2**17
