"""Every implementation by itself: its weights, its API, its results at padding, its refusals."""

import importlib
from dataclasses import replace

import numpy as np
import pytest

import triglot
from triglot import impls
from triglot.shared import activations, inputs
from triglot.shared.recipes import recipe, recipes

TINY = [name for name in recipes() if name.endswith("-tiny")]


@pytest.fixture
def batch_of():
    def make(config, lengths=(7, 1, 5), seed=0):
        return inputs.random_batch(config, lengths, np.random.default_rng(seed))

    return make


@pytest.mark.parametrize("name", TINY)
def test_weights_come_back_bit_for_bit(implementation, name, make_checkpoint):
    checkpoint = make_checkpoint(name)
    weights = impls.build(implementation, checkpoint, dtype="float32").weights()
    assert weights.keys() == checkpoint.tensors.keys()
    for tensor_name, tensor in checkpoint.tensors.items():
        assert weights[tensor_name].dtype == tensor.dtype
        np.testing.assert_array_equal(weights[tensor_name], tensor, err_msg=tensor_name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", TINY)
def test_trace_shows_exactly_the_named_values_in_order(implementation, name, dtype, make_checkpoint, batch_of):
    checkpoint = make_checkpoint(name)
    trace = impls.build(implementation, checkpoint, dtype=dtype).trace(batch_of(checkpoint.config))
    assert list(trace) == list(activations.activations(checkpoint.config))
    assert {value.dtype.name for value in trace.values()} == {dtype}


def test_replacements_are_handed_on(implementation, make_checkpoint, batch_of):
    checkpoint = make_checkpoint("bert-base-tiny")
    model, batch = impls.build(implementation, checkpoint), batch_of(checkpoint.config)
    plain = model.trace(batch)
    name = "encoder.layers.0.post_attention.norm"
    replaced = model.trace(batch, {name: np.zeros_like(plain[name])})
    np.testing.assert_array_equal(replaced[name], plain[name])  # what was computed is recorded
    inner_bias = checkpoint.tensors["encoder.layers.0.feed_forward.inner.bias"]
    inner = replaced["encoder.layers.0.feed_forward.inner"]
    np.testing.assert_array_equal(inner, np.broadcast_to(inner_bias.astype(inner.dtype), inner.shape))


def test_encode_and_heads_are_what_the_trace_shows(implementation, make_checkpoint, batch_of):
    checkpoint = make_checkpoint("ernie-base-tiny")
    model, batch = impls.build(implementation, checkpoint), batch_of(checkpoint.config)
    trace = model.trace(batch)
    arguments = (batch.source, batch.valid, batch.segment_ids, batch.task_ids)
    np.testing.assert_array_equal(model.encode(*arguments), trace["output"])
    heads = model.heads(*arguments)
    assert heads.keys() == {"pooler"}
    np.testing.assert_array_equal(heads["pooler"], trace["heads.pooler"])


@pytest.mark.parametrize(
    "masking",
    [{"masking": "exclude"}, {"masking": "fill", "masking_value": -1e9}, {"masking": "add", "masking_value": -1e4}],
)
def test_padding_changes_nothing_and_comes_out_zero(implementation, masking, make_checkpoint, batch_of):
    config = replace(recipe("bert-base-tiny"), **masking)
    model = impls.build(implementation, make_checkpoint(config), dtype="float64")
    batch = batch_of(config, lengths=(9, 4))
    other = np.where(batch.valid, batch.source, 5)
    output = model.encode(batch.source, batch.valid)
    np.testing.assert_array_equal(output[~batch.valid], 0)
    np.testing.assert_array_equal(output, model.encode(other, batch.valid))
    alone = model.encode(batch.source[1:, :4])
    # The sums run over other lengths, so they may differ by their rounding: 1e-13 is 500 units in float64.
    np.testing.assert_allclose(output[1:, :4], alone, rtol=0, atol=1e-13)


def test_valid_defaults_to_all_tokens(implementation, make_checkpoint, batch_of):
    checkpoint = make_checkpoint("dygraph-tiny")
    model, batch = impls.build(implementation, checkpoint), batch_of(checkpoint.config, lengths=(5, 5))
    np.testing.assert_array_equal(model.encode(batch.source), model.encode(batch.source, batch.valid))


def test_query_with_nothing_to_attend_to_is_defined(implementation):
    """Nothing to attend to: weight 0 under exclude, uniform under fill, never NaN."""
    masks = importlib.import_module(f"triglot.impls.{impls.PACKAGES[implementation]}.masks")
    to_native, to_numpy = NATIVE[implementation]()
    scores = np.random.default_rng(0).standard_normal((1, 2, 3, 4)).astype(np.float32)
    allowed = np.zeros((1, 1, 1, 4), bool)
    config = recipe("bert-base-tiny")
    for changes, expected in (
        ({"masking": "exclude"}, np.zeros_like(scores)),
        ({"masking": "fill", "masking_value": -1e9}, np.full_like(scores, 0.25)),
        ({"masking": "fill", "masking_value": -1e300}, np.full_like(scores, 0.25)),
    ):
        weights = masks.masked_softmax(to_native(scores), to_native(allowed), replace(config, **changes))
        np.testing.assert_array_equal(to_numpy(weights), expected)


def test_query_with_nothing_to_attend_to_under_add_sees_everything(implementation):
    masks = importlib.import_module(f"triglot.impls.{impls.PACKAGES[implementation]}.masks")
    to_native, to_numpy = NATIVE[implementation]()
    # Multiples of 1/8 below 8 survive the addition of -1e4 in float32 exactly.
    scores = (np.arange(8).reshape(1, 1, 2, 4) / 8).astype(np.float32)
    allowed = np.zeros((1, 1, 1, 4), bool)
    config = replace(recipe("bert-base-tiny"), masking="add", masking_value=-1e4)
    weights = to_numpy(masks.masked_softmax(to_native(scores), to_native(allowed), config))
    exponentials = np.exp(scores.astype(np.float64))
    expected = exponentials / exponentials.sum(axis=-1, keepdims=True)
    # Four roundings of float32 on numbers below 1.
    np.testing.assert_allclose(weights, expected, rtol=0, atol=4 * 2.0**-24)


def _torch():
    import torch

    return torch.from_numpy, lambda tensor: tensor.numpy()


def _paddle():
    import paddle

    return paddle.to_tensor, lambda tensor: tensor.numpy()


def _jax():
    import jax.numpy

    return jax.numpy.asarray, np.asarray


NATIVE = {"torch": _torch, "paddle": _paddle, "jax": _jax, "numpy": lambda: (np.asarray, np.asarray)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"token_ids": [[1, 101]]}, "token_ids holds 101; expected ids from 0 to 100"),
        ({"token_ids": [[1, -1]]}, "token_ids holds -1; expected ids from 0 to 100"),
        ({"token_ids": [[1, 2]], "segment_ids": [[0, 2]]}, "segment_ids holds 2; expected ids from 0 to 1"),
        ({"token_ids": [[1] * 38]}, "the length 38 is over the maximum 37"),
        ({"token_ids": np.zeros((0, 4), int)}, "the batch is empty"),
    ],
)
def test_bad_input_is_refused_in_the_same_words_everywhere(implementation, arguments, message, make_checkpoint):
    model = impls.build(implementation, make_checkpoint("bert-base-tiny"))
    with pytest.raises(triglot.InputError, match=message):
        model.encode(**arguments)
    with pytest.raises(triglot.InputError, match=message):
        model.heads(**arguments)


def test_unknown_dtype_is_refused(implementation, make_checkpoint):
    with pytest.raises(triglot.FrameworkError, match="dtype 'int8' is not supported; choose one of float32, float64"):
        impls.build(implementation, make_checkpoint("bert-base-tiny"), dtype="int8")


def test_missing_device_is_refused(implementation, make_checkpoint):
    with pytest.raises(triglot.FrameworkError, match="no cuda device was found; choose device 'cpu'"):
        impls.build(implementation, make_checkpoint("bert-base-tiny"), device="cuda")


def test_float64_is_not_left_behind(framework, make_checkpoint):
    """JAX has a global switch for float64; using it would change other models in the process."""
    checkpoint = make_checkpoint("bert-base-tiny")
    impls.build(framework, checkpoint, dtype="float64").encode([[1, 2]])
    assert impls.build(framework, checkpoint).encode([[1, 2]]).dtype == np.float32
