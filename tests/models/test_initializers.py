"""Initial weights have the distributions that PyTorch draws from in the code of the articles."""

import hashlib
import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch import nn

from triglot.shared.model import schema
from triglot.shared.model.initializers import RULES, initialize
from triglot.shared.model.recipes import recipe

# No two sizes are equal, so that the inputs of a layer are never taken for its outputs.
CONFIG = replace(
    recipe("translation-tiny"),
    hidden_size=48,
    layers=1,
    decoder_layers=1,
    heads=3,
    key_size=24,
    value_size=20,
    feed_forward_size=160,
    source_vocabulary=2111,
    target_vocabulary=223,
)
SAMPLES = 5000
# Two samples of the same distribution exceed the bound once in a million times.
CHANCE = 1e-6


def expected_sample(initializer, parameter):
    """Return a large sample of what the article draws for ``parameter``."""
    layer, leaf = parameter.name.split(".")[-2:]
    return sample(initializer, replace(parameter, name=""), layer, leaf)


@cache
def sample(initializer, parameter, layer, leaf):
    torch.manual_seed(0)
    count = -(-SAMPLES // int(np.prod(parameter.shape)))
    with torch.no_grad():
        return np.concatenate([made(initializer, parameter, layer, leaf).numpy().ravel() for _ in range(count)])


def made(initializer, parameter, layer, leaf):
    if parameter.role == "embedding":
        weight = nn.Embedding(*parameter.shape).weight
        if initializer == "translation":
            weight.normal_(0, 0.1)
        if initializer == "prenorm":
            nn.init.normal_(weight, mean=0.0, std=0.02)
        if initializer == "annotated":
            nn.init.xavier_uniform_(weight)
        return nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04) if initializer == "bert" else weight
    if layer == "norm":
        norm = nn.LayerNorm(parameter.shape)
        return norm.weight if leaf == "scale" else norm.bias
    linear = nn.Linear(parameter.fan_in, parameter.shape[-1])
    if initializer == "bert":
        nn.init.trunc_normal_(linear.weight, std=0.02, a=-0.04, b=0.04)
        nn.init.zeros_(linear.bias)
    if initializer == "prenorm":
        nn.init.normal_(linear.weight, mean=0.0, std=0.02)
        nn.init.zeros_(linear.bias)
    if initializer == "annotated" or (initializer == "multihead" and layer in ("query", "key", "value")):
        nn.init.xavier_uniform_(linear.weight)
    return linear.bias if leaf == "bias" else linear.weight.T


def assert_same_distribution(ours, theirs):
    """Compare by the Kolmogorov-Smirnov test with the bound of Massart. A constant has to be the same constant."""
    assert (np.ptp(ours) == 0) == (np.ptp(theirs) == 0)
    if np.ptp(theirs) == 0:
        assert ours.flat[0] == theirs.flat[0]
        return
    distance, _ = ks_2samp(ours.ravel(), theirs.ravel(), method="asymp")
    bound = np.sqrt(np.log(2 / CHANCE) / 2 * (1 / ours.size + 1 / theirs.size))
    if not distance <= bound:
        raise AssertionError(f"the distributions are {distance:.3g} apart, over {bound:.3g}")


def assert_drawn_by(initializer, tensors):
    for name, tensor in tensors.items():
        assert_same_distribution(tensor, expected_sample(initializer, schema.parameters(CONFIG)[name]))


@pytest.mark.parametrize("initializer", RULES)
def test_every_tensor_has_the_distribution_that_torch_gives_it(initializer):
    tensors = initialize(replace(CONFIG, initializer=initializer), 1)
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}
    assert_drawn_by(initializer, tensors)


@pytest.mark.parametrize(("initializer", "other"), list(itertools.permutations(RULES, 2)))
def test_the_comparison_tells_the_initializers_apart(initializer, other):
    names = ("embeddings.token.weight", "encoder.layers.0.attention.query.weight")
    with pytest.raises(AssertionError, match="the distributions are"):
        assert_drawn_by(other, {name: initialize(replace(CONFIG, initializer=initializer))[name] for name in names})


@pytest.mark.parametrize("initializer", RULES)
def test_matrices_have_these_moments_and_bounds(initializer):
    """Compare with numbers that are spelled out here: the deviation of each matrix, the bound of each uniform one."""
    tensors = initialize(replace(CONFIG, initializer=initializer), 2)
    for name, parameter in schema.parameters(CONFIG).items():
        if len(parameter.shape) == 1:
            continue
        values = tensors[name].astype(np.float64)
        default, xavier = 1 / np.sqrt(parameter.shape[0]), np.sqrt(6 / sum(parameter.shape))
        table, projection = parameter.role == "embedding", name.split(".")[-2] in ("query", "key", "value")
        bound = {
            "bert": None,
            "translation": None if table else default,
            "prenorm": None,
            "annotated": xavier,
            "multihead": None if table else xavier if projection else default,
        }[initializer]
        # A normal cut at two deviations keeps 0.8796 of its deviation.
        normal = {"bert": 0.02 * 0.8796, "translation": 0.1, "prenorm": 0.02, "multihead": 1.0}.get(initializer, 0.0)
        deviation = normal if bound is None else bound / np.sqrt(3)
        # Five standard errors of the mean and of the deviation; a normal has the larger one, 1 / sqrt(2 n).
        assert abs(values.mean()) < 5 * deviation / np.sqrt(values.size), name
        assert abs(values.std() / deviation - 1) < 5 / np.sqrt(2 * values.size), name
        if bound is not None:
            # The bound is rounded to float32. None of n uniform values lies in the last 14 / n with probability e^-14.
            assert bound * (1 - 14 / values.size) < np.abs(values).max() <= bound * (1 + 2.0**-23), name


@pytest.mark.parametrize("initializer", RULES)
def test_biases_of_linear_layers_depend_on_the_inputs_of_their_layer(initializer):
    tensors = initialize(replace(CONFIG, initializer=initializer), 3)
    for name, parameter in schema.parameters(CONFIG).items():
        if name.endswith(".norm.bias") or (parameter.role == "bias" and initializer in ("bert", "prenorm")):
            np.testing.assert_array_equal(tensors[name], 0, err_msg=name)
        elif parameter.role == "bias":
            bound = 1 / np.sqrt(len(tensors[name.replace("bias", "weight")]))
            # The tolerances are those of the matrices above.
            assert bound * (1 - 14 / parameter.shape[0]) < np.abs(tensors[name]).max() <= bound * (1 + 2.0**-23), name


def test_the_bias_over_the_vocabulary_is_that_of_a_linear_layer():
    config = replace(recipe("bert-base-tiny"), heads_on_top=("masked_lm",), initializer="translation")
    bias = initialize(config)["heads.masked_lm.bias"]
    bound = 1 / np.sqrt(config.hidden_size)
    assert bound * (1 - 14 / bias.size) < np.abs(bias).max() <= bound * (1 + 2.0**-23)


def test_every_tensor_has_its_own_random_stream():
    config = replace(CONFIG, initializer="annotated")
    deeper = initialize(replace(config, layers=2))
    for name, tensor in initialize(config).items():
        np.testing.assert_array_equal(tensor, deeper[name], err_msg=name)
    assert (deeper["encoder.layers.0.attention.query.bias"] != deeper["encoder.layers.1.attention.query.bias"]).any()


PINNED = {
    "bert": "def439ef879c9d0fd27e9982f048caba1821baee7272bbfe3eedeb07ab10b721",
    "translation": "5df7fb3fcb3487919697d5d0517beadd081807951ba58adc8c091cf4aa95ecea",
    "prenorm": "5b8673afcab74a88e5a6d6b7a4eeb2d224591501cbc7e13811c6115f152cd846",
    "annotated": "743408b1a603e72d5babb8cad3e4061938997cfb4fcba120f0cadc0b3742c167",
    "multihead": "b105d0c28ff88a85f034deb6b9d609bf66ed73029575a81451d2af9ca8cdeb80",
}


@pytest.mark.parametrize("initializer", RULES)
def test_the_weights_of_a_seed_never_change(initializer):
    """A recipe and a seed identify the weights."""
    tensors = initialize(replace(recipe("translation-tiny"), initializer=initializer), 3)
    digest = hashlib.sha256(b"".join(name.encode() + tensor.tobytes() for name, tensor in tensors.items()))
    assert digest.hexdigest() == PINNED[initializer]


def test_recipes_have_the_initializers_of_their_articles():
    for name in ("translation", "annotated"):
        assert recipe(name).initializer == recipe(f"{name}-tiny").initializer == name
    for name in ("dygraph", "bert-base", "ernie-base", "minilm"):
        assert recipe(name).initializer == "bert"
