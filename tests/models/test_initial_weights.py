"""Initial weights follow from the schema and the seed, and perturbed ones are no longer constant."""

from dataclasses import replace

import numpy as np
import pytest
from one_layer_models import BERT
from scipy.stats import truncnorm

from triglot.shared.arrays import Array
from triglot.shared.model import schema
from triglot.shared.model.initializers import STANDARD_DEVIATION, initialize, perturb
from triglot.shared.model.recipes import recipe, recipes


@pytest.mark.parametrize("name", [name for name in recipes() if name.endswith("-tiny")])
def test_initial_weights_are_those_of_the_schema_and_of_the_seed(name):
    config = recipe(name)
    first, again, other = initialize(config, 3), initialize(config, 3), initialize(config, 4)
    schema.verify(config, first)
    for tensor_name, entry in schema.parameters(config).items():
        tensor = first[tensor_name]
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, again[tensor_name])
        if entry.role == "scale":
            np.testing.assert_array_equal(tensor, 1)
        elif entry.role == "bias" and (config.initializer in ("bert", "prenorm") or not entry.fan_in):
            np.testing.assert_array_equal(tensor, 0)
        else:
            assert (tensor != other[tensor_name]).mean() > 0.99, tensor_name


def test_a_tensor_is_drawn_independently_of_every_other():
    fewer = initialize(replace(BERT, segments=0, heads_on_top=()))
    more = initialize(replace(BERT, segments=3, tasks=2, layers=2))
    assert fewer.keys() < more.keys()
    for name, tensor in fewer.items():
        np.testing.assert_array_equal(tensor, more[name], err_msg=name)
    drawn = [more[f"encoder.layers.{i}.attention.{name}.weight"] for i in (0, 1) for name in ("query", "key", "value")]
    assert len({tensor.tobytes() for tensor in drawn}) == len(drawn)


def test_initial_matrices_are_normal_and_cut_at_two_deviations():
    assert STANDARD_DEVIATION == 0.02
    weights = initialize(replace(BERT, source_vocabulary=5000))["embeddings.token.weight"].astype(np.float64)
    scaled = weights / 0.02
    # 0.02 and each product are rounded to float32: two half units, 2^-23 in all.
    bound = 2 * (1 + 2.0**-23)
    assert np.abs(scaled).max() <= bound
    # Values outside are redrawn, not clipped. The density at an end is 0.057, so 7 of 120,000 values are expected
    # within 0.0005 of the two ends. Of a clipped sample, 4.6% (5,460 values) would be at the ends.
    assert (np.abs(scaled) > 1.9995).sum() < 50
    # Five standard errors of a sample of this size. That of the deviation is below 1 / sqrt(2 n), a normal sample's.
    expected = truncnorm(-2, 2)
    assert abs(scaled.mean()) < 5 * expected.std() / np.sqrt(scaled.size)
    assert abs(scaled.std() / expected.std() - 1) < 5 / np.sqrt(2 * scaled.size)


def test_perturbing_changes_exactly_the_constant_tensors_and_no_argument():
    tensors: dict[str, Array] = {**initialize(BERT)}
    tensors["heads.pooler.bias"] = tensors["heads.pooler.bias"].astype(np.float64)
    before = {name: tensor.copy() for name, tensor in tensors.items()}
    perturbed = perturb(tensors, 1)
    assert list(perturbed) == list(tensors)
    for name, entry in schema.parameters(BERT).items():
        np.testing.assert_array_equal(tensors[name], before[name], err_msg=name)
        assert perturbed[name].dtype == tensors[name].dtype
        if entry.role in ("scale", "bias"):
            assert (perturbed[name] != tensors[name]).all(), name
        else:
            assert perturbed[name] is tensors[name]


def test_the_perturbation_depends_on_seed_and_name_and_has_the_deviation_0_2():
    tensors = initialize(replace(BERT, layers=8))
    first, again, other = perturb(tensors, 1), perturb(tensors, 1), perturb(tensors, 2)
    biases = [name for name in tensors if name.endswith("bias")]
    for name in biases:
        np.testing.assert_array_equal(first[name], again[name], err_msg=name)
        assert (first[name] != other[name]).all(), name
    assert len({first[name].tobytes() for name in biases}) == len(biases)
    noise = np.concatenate([first[name] for name in biases])
    # Five standard errors of the mean and of the deviation of a normal sample of this size.
    assert abs(noise.mean()) < 5 * 0.2 / np.sqrt(noise.size)
    assert abs(noise.std() / 0.2 - 1) < 5 / np.sqrt(2 * noise.size)
