"""BatchNorm1d of every implementation against torch.nn, and against the two tables that article 000 prints."""

import contextlib
import importlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from triglot import impls
from triglot.shared.errors import InputError
from triglot.shared.model.recipes import recipe

UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}
CHANNELS = 3
SCALE, BIAS = np.array([0.5, -2.0, 1.5]), np.array([1.0, 0.25, -3.0])
INPUT = np.arange(32, dtype=np.float32).reshape(2, 4, 4)
# As article 000 prints them, first dimension by first dimension; every channel is the same.
BATCH_NORM = np.array([[[-1.1761, -1.0523, -0.9285, -0.8047]] * 4, [[0.8047, 0.9285, 1.0523, 1.1761]] * 4])
LAYER_NORM = np.array([[[-1.3416, -0.4472, 0.4472, 1.3416]] * 4] * 2)


class Layer:
    """One norm of one implementation: NumPy arrays in and out, in ``dtype``."""

    def __init__(self, implementation, name, *arguments, dtype="float32", **options):
        self.implementation, self.dtype = implementation, dtype
        norms = importlib.import_module(f"triglot.impls.{impls.PACKAGES[implementation]}.norms")
        with self.arithmetic():
            if implementation == "jax":
                from flax import nnx

                options["rngs"] = nnx.Rngs(0)
            self.layer = getattr(norms, name)(*arguments, **options)
            if implementation in ("torch", "paddle"):
                self.layer.to(dtype=getattr(importlib.import_module(implementation), dtype))
            if implementation == "numpy":
                for attribute, value in vars(self.layer).items():
                    if isinstance(value, np.ndarray):
                        setattr(self.layer, attribute, value.astype(dtype))

    def arithmetic(self):
        if self.implementation != "jax":
            return contextlib.nullcontext()
        import jax

        return jax.enable_x64(self.dtype == "float64")

    def __call__(self, x):
        with self.arithmetic():
            y = self.array(self.layer(self.tensor(x)))
        assert y.dtype == self.dtype
        return y

    def __getitem__(self, attribute):
        return self.array(getattr(self.layer, attribute))

    def __setitem__(self, attribute, value):
        with self.arithmetic():
            tensor = self.tensor(value)
            if self.implementation == "torch":
                getattr(self.layer, attribute).data = tensor
            elif self.implementation == "paddle":
                getattr(self.layer, attribute).set_value(tensor)
            elif self.implementation == "jax":
                getattr(self.layer, attribute)[...] = tensor
            else:
                setattr(self.layer, attribute, tensor)

    def infer(self):
        if self.implementation == "numpy":
            self.layer.training = False
        else:
            self.layer.eval()

    def learn(self):
        if self.implementation == "numpy":
            self.layer.training = True
        else:
            self.layer.train()

    def tensor(self, array):
        array = np.asarray(array).astype(self.dtype)
        if self.implementation == "numpy":
            return array
        if self.implementation == "jax":
            from jax import numpy as jnp

            return jnp.asarray(array)
        framework = importlib.import_module(self.implementation)
        return framework.from_numpy(array) if self.implementation == "torch" else framework.to_tensor(array)

    def array(self, tensor):
        return np.asarray(tensor.detach() if self.implementation in ("torch", "paddle") else tensor)


@pytest.fixture(params=UNIT)
def dtype(request):
    return request.param


@pytest.fixture(params=[(5, CHANNELS), (4, CHANNELS, 6)], ids=["(B, C)", "(B, C, L)"])
def batches(request):
    """Four batches whose channels have means of their own, and deviations of 1 to 3."""
    generator, place = np.random.default_rng(0), (1, CHANNELS) + (1,) * (len(request.param) - 2)
    deviation, mean = np.array([1.0, 2.0, 3.0]).reshape(place), np.array([4.0, 0.0, -2.0]).reshape(place)
    drawn = [generator.normal(mean, deviation, request.param) for _ in range(4)]
    assert min(batch.std(axis).min() for batch in drawn for axis in [(0, 2)[: batch.ndim - 1]]) > 0.4
    return drawn


def theirs(dtype):
    layer = torch.nn.BatchNorm1d(CHANNELS, dtype=getattr(torch, dtype))
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(SCALE))
        layer.bias.copy_(torch.from_numpy(BIAS))
    return layer


def ours(implementation, dtype):
    layer = Layer(implementation, "BatchNorm1d", CHANNELS, dtype=dtype)
    layer["scale"], layer["bias"] = SCALE, BIAS
    return layer


def assert_close(value, expected, dtype):
    """Values, squares, running statistics and results are below 64, and each deviation is over 0.4.

    A mean of n terms is off by at most n units of the largest; centring, squaring, the mean of the squares, the root
    and the division add less than as many again: 2 n + 8 units of 64, and the division by 0.4. n is at most 24, and
    both sides round.
    """
    assert value.shape == expected.shape
    assert np.abs(expected).max() < 64
    np.testing.assert_allclose(value, expected, rtol=0, atol=2 * (2 * 24 + 8) * 64 / 0.4 * UNIT[dtype])


def test_batch_norm_prints_the_table_of_article_000(implementation):
    # Printed with 4 digits: half a unit of the last one, and the rounding of the numbers themselves.
    np.testing.assert_allclose(Layer(implementation, "BatchNorm1d", 4)(INPUT), BATCH_NORM, rtol=0, atol=5.01e-5)


def test_layer_norm_prints_the_table_of_article_000(implementation):
    config = replace(recipe("translation"), hidden_size=4)
    np.testing.assert_allclose(Layer(implementation, "LayerNorm", config)(INPUT), LAYER_NORM, rtol=0, atol=5.01e-5)


def test_training_and_inference_are_those_of_torch(implementation, dtype, batches):
    layer, peer = ours(implementation, dtype), theirs(dtype)

    def assert_same_output(batch):
        expected = peer(torch.from_numpy(batch.astype(dtype))).detach().numpy()
        assert_close(layer(batch), expected, dtype)

    def assert_same_statistics():
        statistics = peer.state_dict()
        assert_close(layer["mean"], statistics["running_mean"].numpy(), dtype)
        assert_close(layer["variance"], statistics["running_var"].numpy(), dtype)

    assert_same_statistics()
    for batch in batches[:3]:
        assert_same_output(batch)
        assert_same_statistics()
    layer.infer()
    peer.eval()
    before = layer["mean"].copy(), layer["variance"].copy()
    assert_same_output(batches[3])
    assert_same_output(batches[3][:1])  # one row is enough in inference
    np.testing.assert_array_equal((layer["mean"], layer["variance"]), before)
    layer.learn()
    peer.train()
    assert_same_output(batches[3])
    assert_same_statistics()


def test_the_convention_is_told_from_the_others(implementation, batches):
    """The biased variance in the running one, momentum the other way round, and another epsilon would be noticed."""
    layer, batch = ours(implementation, "float64"), batches[0]
    layer(batch)
    axes = (0, 2)[: batch.ndim - 1]
    unbiased, biased = batch.var(axes, ddof=1), batch.var(axes)
    assert_close(layer["variance"], 0.9 + 0.1 * unbiased, "float64")
    for wrong in (0.9 + 0.1 * biased, 0.1 + 0.9 * unbiased):
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            assert_close(layer["variance"], wrong, "float64")
    other = Layer(implementation, "BatchNorm1d", CHANNELS, 2e-5, 0.2, dtype="float64")
    other["scale"], other["bias"] = SCALE, BIAS
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_close(other(batch), layer(batch), "float64")
    assert_close(other["variance"], 0.8 + 0.2 * unbiased, "float64")


@pytest.mark.parametrize("shape", [(1, CHANNELS), (1, CHANNELS, 1)])
def test_one_value_per_channel_has_no_variance_to_learn_from(implementation, shape):
    layer = ours(implementation, "float32")
    message = rf"^the batch norm got an input \({', '.join(map(str, shape))}\) with 1 value per channel; expected at "
    with pytest.raises(InputError, match=f"{message}least 2 in training; give a larger batch, or switch to inference$"):
        layer(np.ones(shape))
    np.testing.assert_array_equal(layer["variance"], 1)
    layer.infer()
    assert layer(np.ones(shape)).shape == shape
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        theirs("float32")(torch.ones(shape))


@pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 4, 3), (3, 2), (2, 3, 4, 5)])
def test_another_shape_is_refused(implementation, shape):
    layer = ours(implementation, "float32")
    given = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    for prepare in (layer.learn, layer.infer):
        prepare()
        message = rf"^the batch norm got an input \({given}\); expected \(B, 3\) or \(B, 3, L\)$"
        with pytest.raises(InputError, match=message):
            layer(np.ones(shape))
