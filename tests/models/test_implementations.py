"""Every implementation on its own: weights, methods, results at padding, refusals."""

import importlib
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import triglot
from triglot import impls
from triglot.shared import inputs
from triglot.shared.arrays import FLOATS, HALVES
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.model.recipes import recipe, recipes
from triglot.shared.model.schema import named_values

PRE_TRAINING = replace(
    recipe("bert-base-tiny"), heads_on_top=("pooler", "masked_lm", "next_sentence"), tied_embeddings=True
)
TINY = {name: config for name, config in recipes().items() if name.endswith("-tiny")} | {
    "pre-training": PRE_TRAINING,
    "pre-training, untied": replace(PRE_TRAINING, tied_embeddings=False),
}


@pytest.fixture
def batch_of():
    def make(config, lengths=(7, 1, 5), seed=0):
        return inputs.random_batch(config, lengths, np.random.default_rng(seed))

    return make


@pytest.mark.parametrize("config", TINY.values(), ids=TINY)
def test_weights_are_read_back_bit_for_bit(implementation, config, make_checkpoint):
    checkpoint = make_checkpoint(config)
    weights = impls.build(implementation, checkpoint, dtype="float32").weights()
    assert weights.keys() == checkpoint.tensors.keys()
    for tensor_name, tensor in checkpoint.tensors.items():
        assert weights[tensor_name].dtype == tensor.dtype
        np.testing.assert_array_equal(weights[tensor_name], tensor, err_msg=tensor_name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("config", TINY.values(), ids=TINY)
def test_trace_returns_the_named_values_in_order(implementation, config, dtype, make_checkpoint, batch_of):
    checkpoint = make_checkpoint(config)
    trace = impls.build(implementation, checkpoint, dtype=dtype).trace(batch_of(checkpoint.config))
    assert list(trace) == list(named_values(checkpoint.config))
    assert {value.dtype.name for value in trace.values()} == {dtype}


def test_replacements_flow_through_the_model(implementation, make_checkpoint, batch_of):
    checkpoint = make_checkpoint("bert-base-tiny")
    model, batch = impls.build(implementation, checkpoint), batch_of(checkpoint.config)
    plain = model.trace(batch)
    name = "encoder.layers.0.post_attention.norm"
    replaced = model.trace(batch, {name: np.zeros_like(plain[name])})
    np.testing.assert_array_equal(replaced[name], plain[name])  # the record holds the computed value
    inner_bias = checkpoint.tensors["encoder.layers.0.feed_forward.inner.bias"]
    inner = replaced["encoder.layers.0.feed_forward.inner"]
    np.testing.assert_array_equal(inner, np.broadcast_to(inner_bias.astype(inner.dtype), inner.shape))


def test_encode_and_heads_agree_with_trace(implementation, make_checkpoint, batch_of):
    checkpoint = make_checkpoint(PRE_TRAINING)
    model, batch = impls.build(implementation, checkpoint), batch_of(checkpoint.config)
    trace = model.trace(batch)
    arguments = (batch.source, batch.valid, batch.segment_ids)
    np.testing.assert_array_equal(model.encode(*arguments), trace["output"])
    heads = model.heads(*arguments)
    assert heads.keys() == {"pooler", "masked_lm", "next_sentence"}
    for name, value in heads.items():
        np.testing.assert_array_equal(value, trace[f"heads.{name}"])
    np.testing.assert_array_equal(heads["masked_lm"][~batch.valid], 0)


@pytest.mark.parametrize(
    "masking",
    [{"masking": "exclude"}, {"masking": "fill", "masking_value": -1e9}, {"masking": "add", "masking_value": -1e4}],
)
def test_padding_changes_nothing_and_returns_zero(implementation, masking, make_checkpoint, batch_of):
    config = replace(recipe("bert-base-tiny"), **masking)
    model = impls.build(implementation, make_checkpoint(config), dtype="float64")
    batch = batch_of(config, lengths=(9, 4))
    other = np.where(batch.valid, batch.source, 5)
    output = model.encode(batch.source, batch.valid)
    np.testing.assert_array_equal(output[~batch.valid], 0)
    np.testing.assert_array_equal(output, model.encode(other, batch.valid))
    alone = model.encode(batch.source[1:, :4])
    # Sums over other lengths round differently: 1e-13 is 500 units in float64.
    np.testing.assert_allclose(output[1:, :4], alone, rtol=0, atol=1e-13)


def test_valid_defaults_to_all_tokens(implementation, make_checkpoint, batch_of):
    checkpoint = make_checkpoint("dygraph-tiny")
    model, batch = impls.build(implementation, checkpoint), batch_of(checkpoint.config, lengths=(5, 5))
    np.testing.assert_array_equal(model.encode(batch.source), model.encode(batch.source, batch.valid))


def test_weights_of_a_query_that_may_attend_to_nothing(implementation):
    """They are 0 with "exclude" and uniform with "fill", never NaN."""
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
        weights = masks.masked_softmax(to_native(scores), to_native(allowed), None, replace(config, **changes))
        np.testing.assert_array_equal(to_numpy(weights), expected)


def test_added_masking_value_cancels_if_nothing_is_allowed(implementation):
    masks = importlib.import_module(f"triglot.impls.{impls.PACKAGES[implementation]}.masks")
    to_native, to_numpy = NATIVE[implementation]()
    # Multiples of 1/8 below 8 survive the addition of -1e4 in float32 exactly.
    scores = (np.arange(8).reshape(1, 1, 2, 4) / 8).astype(np.float32)
    allowed = np.zeros((1, 1, 1, 4), bool)
    config = replace(recipe("bert-base-tiny"), masking="add", masking_value=-1e4)
    weights = to_numpy(masks.masked_softmax(to_native(scores), to_native(allowed), None, config))
    exponentials = np.exp(scores.astype(np.float64))
    expected = exponentials / exponentials.sum(axis=-1, keepdims=True)
    # Four roundings in float32 of numbers below 1.
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
def test_bad_input_is_refused_everywhere(implementation, arguments, message, make_checkpoint):
    model = impls.build(implementation, make_checkpoint("bert-base-tiny"))
    with pytest.raises(triglot.InputError, match=message):
        model.encode(**arguments)
    with pytest.raises(triglot.InputError, match=message):
        model.heads(**arguments)


def test_unknown_dtype_is_refused(implementation, make_checkpoint):
    with pytest.raises(triglot.FrameworkError, match=r"dtype 'int8'.*expected.*float32"):
        impls.build(implementation, make_checkpoint("bert-base-tiny"), dtype="int8")


@pytest.mark.long(framework="jax", dtype="float16")
@pytest.mark.parametrize("dtype", HALVES)
def test_16_bit_dtypes(framework, dtype, make_checkpoint, batch_of):
    """Weights and values have the dtype. Paddle, which lacks the kernels on a CPU, refuses."""
    checkpoint = make_checkpoint(PRE_TRAINING)
    if framework == "paddle":
        with pytest.raises(triglot.FrameworkError, match=f"PaddlePaddle: no {dtype} on a CPU.*; choose"):
            impls.build(framework, checkpoint, dtype=dtype)
        return
    model = impls.build(framework, checkpoint, dtype=dtype)
    for name, tensor in model.weights().items():
        assert tensor.dtype == FLOATS[dtype]
        np.testing.assert_array_equal(tensor, checkpoint.tensors[name].astype(FLOATS[dtype]), err_msg=name)
    batch = batch_of(checkpoint.config)
    trace = model.trace(batch)
    assert list(trace) == list(named_values(checkpoint.config))
    assert {value.dtype for value in trace.values()} == {FLOATS[dtype]}
    arguments = (batch.source, batch.valid, batch.segment_ids)
    np.testing.assert_array_equal(model.encode(*arguments), trace["output"])
    np.testing.assert_array_equal(model.heads(*arguments)["masked_lm"], trace["heads.masked_lm"])


@pytest.mark.parametrize("dtype", HALVES)
def test_reference_refuses_16_bit_dtypes(dtype, make_checkpoint):
    with pytest.raises(triglot.FrameworkError, match=rf"{dtype}.*float32, float64"):
        impls.build("numpy", make_checkpoint("bert-base-tiny"), dtype=dtype)


def test_weights_too_large_for_float16_are_refused(framework, make_checkpoint):
    checkpoint = make_checkpoint("bert-base-tiny")
    checkpoint.tensors["embeddings.token.weight"][1, 2] = 7e4
    with pytest.raises(triglot.CheckpointError, match=r"embeddings\.token\.weight.*float16"):
        impls.build(framework, checkpoint, dtype="float16")


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "float64"])
def test_weights_stored_in_any_format_run_in_float32(implementation, stored, make_checkpoint):
    original = make_checkpoint("bert-base-tiny")
    tensors = {name: tensor.astype(FLOATS[stored]) for name, tensor in original.tensors.items()}
    expected = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    weights = impls.build(implementation, Checkpoint(original.config, tensors), dtype="float32").weights()
    for name, tensor in weights.items():
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, expected[name], err_msg=name)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(implementation, value, make_checkpoint):
    checkpoint = make_checkpoint("bert-base-tiny")
    checkpoint.tensors["encoder.layers.1.attention.key.bias"][3] = value
    with pytest.raises(triglot.CheckpointError, match=r"encoder\.layers\.1\.attention\.key\.bias.*NaN or inf"):
        impls.build(implementation, checkpoint)


def test_unknown_mode_is_refused(implementation, make_checkpoint):
    with pytest.raises(triglot.FrameworkError, match=r"mode 'turbo'.*expected.*eager, jit, compiled"):
        impls.build(implementation, make_checkpoint("bert-base-tiny"), mode="turbo")


def test_missing_device_is_refused(implementation, make_checkpoint):
    with pytest.raises(triglot.FrameworkError, match=r"no cuda device.*'cpu'"):
        impls.build(implementation, make_checkpoint("bert-base-tiny"), device="cuda")


@pytest.mark.long(framework="jax")
def test_float64_models_do_not_change_other_models(framework, make_checkpoint):
    """JAX has a global switch for float64, which must not be used."""
    checkpoint = make_checkpoint("bert-base-tiny")
    impls.build(framework, checkpoint, dtype="float64").encode([[1, 2]])
    assert impls.build(framework, checkpoint).encode([[1, 2]]).dtype == np.float32


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs to fork processes that have not computed anything")
def test_first_call_of_pytorch_in_a_process_is_exact():
    """Without the workaround in ``impls/pytorch``, 3 of 100 processes with two threads had a wrong first tanh."""
    code = """
import os
import numpy as np
import torch
import triglot.impls.pytorch
x = np.random.default_rng(0).standard_normal((8, 384))
wrong = 0
for _ in range(200):
    if not (child := os.fork()):
        torch.set_num_threads(2)
        values = torch.tanh(torch.from_numpy(x.astype(np.float32))).numpy()
        os._exit(int(np.abs(values - np.tanh(x.astype(np.float32))).max() > 1e-6))
    wrong += os.waitpid(child, 0)[1] != 0
print(wrong)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "0\n"


def test_eager_pytorch_does_not_import_its_compiler():
    """The import takes 1.4 s. Initializing an ``nn.Embedding`` on the meta device would trigger it."""
    code = """
import sys
import triglot
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe
config = recipe("minilm-tiny")
model = triglot.build("torch", triglot.Checkpoint(config, initialize(config)))
model.encode([[1, 2, 3]])
print("torch" in sys.modules, "torch._dynamo" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "True False\n"
