"""Conversion to another number format: exactly what a cast does, with everything that is lost reported."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from refusals import assert_refused, run_process

import triglot
from triglot.shared import porting
from triglot.shared.arrays import FLOATS
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.choices import DTYPES
from triglot.shared.errors import PortingError
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe
from triglot.shared.training.plan import History, Moments, Plan, Training

CONFIG = replace(recipe("dygraph-tiny"), layers=1)
NAME = "encoder.layers.0.feed_forward.inner.bias"
SIZE = CONFIG.feed_forward_size


def with_numbers(numbers):
    """Return a checkpoint of zeros and ones, except for one tensor of numbers that would be rounded."""
    tensors = {name: np.zeros(tensor.shape, numbers.dtype) for name, tensor in initialize(CONFIG, 0).items()}
    return Checkpoint(CONFIG, {**tensors, NAME: numbers})


@pytest.mark.parametrize("dtype", DTYPES)
@given(numbers=arrays.arrays(np.float64, SIZE, elements=st.floats(-60000, 60000)))
@settings(deadline=None, max_examples=30)
def test_numbers_are_cast_and_losses_are_counted(numbers, dtype):
    converted, losses = porting.convert(with_numbers(numbers), dtype)
    expected = numbers.astype(FLOATS[dtype])
    assert converted.tensors[NAME].dtype == FLOATS[dtype]
    assert converted.tensors[NAME].tobytes() == expected.tobytes()
    back = expected.astype(np.float64)
    to_zero = (back == 0) & (numbers != 0)
    changed = (back != numbers) & ~to_zero
    assert losses.total == sum(tensor.size for tensor in converted.tensors.values())
    assert (losses.rounded, losses.to_zero, losses.clamped) == (changed.sum(), to_zero.sum(), 0)
    errors = [abs(b - n) / abs(n) for b, n in zip(back[changed], numbers[changed], strict=True)]
    assert losses.largest_error == pytest.approx(max(errors, default=0), rel=1e-12)


@pytest.mark.parametrize(("dtype", "too_large"), [("float16", 65520.0), ("bfloat16", 3.4e38), ("float32", 1e39)])
def test_numbers_that_are_too_large_are_refused_or_become_the_largest(dtype, too_large):
    numbers = np.zeros(SIZE)
    numbers[:3] = too_large, -too_large, 1.0
    checkpoint = with_numbers(numbers)
    message = f"{NAME} holds 2 numbers that are too large for {dtype}; .* --allow-lossy"
    with pytest.raises(PortingError, match=message):
        triglot.port(checkpoint, dtype=dtype)
    converted, losses = porting.convert(checkpoint, dtype, allow_lossy=True)
    largest = float(ml_dtypes.finfo(FLOATS[dtype]).max)
    assert converted.tensors[NAME][:3].astype(np.float64).tolist() == [largest, -largest, 1.0]
    assert losses.clamped == 2
    assert "2 become the largest number" in losses.describe()


def test_nan_and_infinity_stay():
    numbers = np.zeros(SIZE, np.float32)
    numbers[:3] = np.nan, np.inf, -np.inf
    converted, losses = porting.convert(with_numbers(numbers), "float16")
    np.testing.assert_array_equal(converted.tensors[NAME], numbers.astype(np.float16))
    assert losses.describe() == "every number is kept exactly"


def test_a_wider_format_keeps_every_number(make_checkpoint, tmp_path):
    checkpoint = make_checkpoint(CONFIG)
    wide = triglot.port(checkpoint, tmp_path / "wide.npz", dtype="float64")
    assert all(tensor.dtype == np.float64 for tensor in wide.tensors.values())
    back = triglot.port(tmp_path / "wide.npz", dtype="float32")
    assert back.digest == checkpoint.digest


def test_an_unknown_dtype_is_refused(make_checkpoint):
    with pytest.raises(PortingError, match="dtype is 'int8'; expected one of float32, float64, bfloat16, float16"):
        triglot.port(make_checkpoint(CONFIG), dtype="int8")


def test_a_training_state_is_left_out_by_name(make_checkpoint):
    plain = make_checkpoint(replace(recipe("bert-base-tiny"), layers=1))
    moments = {name: np.zeros(tensor.shape, np.float32) for name, tensor in plain.tensors.items()}
    checkpoint = Checkpoint(
        plain.config, plain.tensors, training=Training(Plan(), Moments(0, moments, moments), History())
    )
    for changed in (triglot.port(checkpoint, dtype="float16"), triglot.port(checkpoint, heads=())):
        assert changed.training is None
        assert "the training state" in changed.left_out
    assert triglot.port(checkpoint).training is checkpoint.training


def test_the_command_reports_what_is_lost(make_checkpoint, tmp_path):
    triglot.save(make_checkpoint(CONFIG), tmp_path / "model.npz")
    command = ["port", tmp_path / "model.npz", tmp_path / "half.npz", "--dtype", "float16"]
    code, out, err = run_process(*command)
    assert (code, err) == (0, "")
    losses = porting.convert(triglot.load(tmp_path / "model.npz"), "float16")[1]
    assert losses.rounded > 0
    assert f"converted to float16: {losses.describe()}" in " ".join(out.split())
    assert all(tensor.dtype == np.float16 for tensor in triglot.load(tmp_path / "half.npz").tensors.values())
    triglot.save(with_numbers(np.full(SIZE, 1e6)), tmp_path / "model.npz")
    assert_refused(run_process(*command), "too large for float16")
    assert run_process(*command, "--allow-lossy")[0] == 0
