"""The public functions: what they refuse, and who owns the arrays."""

import sys

import numpy as np
import pytest

import triglot
from triglot.shared.inputs import validation as inputs


def test_frameworks_are_those_under_test(framework):
    assert framework in triglot.frameworks()


def test_check_in_this_process_and_in_workers_agree(make_checkpoint):
    checkpoint = make_checkpoint("dygraph-tiny")
    local, isolated = (triglot.check(checkpoint, ["torch"], isolate=isolate, threads=1) for isolate in (False, True))
    assert local.verdict == isolated.verdict == "pass"
    assert [(row.check, row.name) for row in local.rows] == [(row.check, row.name) for row in isolated.rows]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"frameworks": ["caffe"]}, triglot.FrameworkError, "unknown framework 'caffe'; expected one of torch, paddle"),
        ({"frameworks": []}, triglot.FrameworkError, "frameworks is empty; name one, or give None for"),
        (
            {"dtype": "int8"},
            triglot.FrameworkError,
            "unknown dtype 'int8'; expected one of float32, float64, bfloat16, ",
        ),
        ({"mode": "turbo"}, triglot.FrameworkError, "unknown mode 'turbo'; expected one of eager"),
        ({"pythons": {"torch": "/no/python"}}, triglot.FrameworkError, "there is no interpreter /no/python; give the"),
        (
            {"pythons": {"jax": sys.executable}, "frameworks": ["torch"]},
            triglot.FrameworkError,
            "an interpreter was given for jax, which takes no part; leave it out",
        ),
        (
            {"pythons": {"torch": sys.executable}, "isolate": False},
            triglot.FrameworkError,
            "an interpreter was given, but without isolate all frameworks run in this one; isolate them",
        ),
        ({"device": "tpu"}, triglot.FrameworkError, "unknown device 'tpu'; expected one of cpu, cuda"),
        ({"seed": -1}, triglot.ConfigError, "seed is -1; expected a whole number, 0 or more"),
        ({"batches": []}, triglot.InputError, "batches is empty.*at least one batch"),
    ],
)
def test_check_refuses(arguments, error, message, make_checkpoint):
    with pytest.raises(error, match=message):
        triglot.check(make_checkpoint("bert-base-tiny"), **arguments)


def test_check_refuses_batches_of_another_model(make_checkpoint):
    ids = np.full((1, 2), 30000)
    foreign = inputs.batch(triglot.recipes()["minilm"], ids)
    with pytest.raises(triglot.InputError, match="token_ids holds 30000; expected ids from 0 to 100"):
        triglot.check(make_checkpoint("bert-base-tiny"), ["torch"], batches=[foreign])


def test_build_refuses_unknown_frameworks_and_devices(make_checkpoint):
    checkpoint = make_checkpoint("bert-base-tiny")
    with pytest.raises(
        triglot.FrameworkError, match="unknown framework 'caffe'; expected one of torch, paddle, jax, numpy"
    ):
        triglot.build("caffe", checkpoint)
    with pytest.raises(triglot.FrameworkError, match="unknown device 'gpu'; expected one of cpu, cuda"):
        triglot.build("paddle", checkpoint, device="gpu")


def test_initialize_refuses_unknown_recipes_and_seeds():
    with pytest.raises(
        triglot.ConfigError, match="unknown recipe 'gpt'; the recipes are translation, prenorm, annotated"
    ):
        triglot.initialize("gpt")
    with pytest.raises(triglot.ConfigError, match="seed is -1; expected a whole number, 0 or more"):
        triglot.initialize("bert-base-tiny", seed=-1)


def test_what_a_model_returns_is_the_callers(implementation, make_checkpoint):
    """Writing into a result changes neither the model nor the checkpoint."""
    checkpoint = make_checkpoint("bert-base-tiny")
    digest = checkpoint.digest
    model = triglot.build(implementation, checkpoint, dtype="float32")
    before = model.encode([[1, 2, 3]])
    model.encode([[1, 2, 3]])[:] = 7
    model.heads([[1, 2, 3]])["pooler"][:] = 7
    for tensor in model.weights().values():
        tensor[...] = 7
    np.testing.assert_array_equal(model.encode([[1, 2, 3]]), before)
    assert checkpoint.digest == digest


@pytest.mark.parametrize("implementation_that_copies", ["paddle", "jax"])
def test_changing_the_checkpoint_later_does_not_change_the_model(implementation_that_copies, make_checkpoint):
    """JAX's device_put may keep the memory of an aligned array: a trap, were it not for a copy."""
    checkpoint = make_checkpoint("bert-base-tiny")
    model = triglot.build(implementation_that_copies, checkpoint)
    before = model.encode([[1, 2, 3]])
    for tensor in checkpoint.tensors.values():
        tensor[...] = 7
    np.testing.assert_array_equal(model.encode([[1, 2, 3]]), before)


@pytest.mark.parametrize(("recipe", "dtype"), [("bert-base-tiny", "float32"), ("dygraph-tiny", "float64")])
def test_correct_models_raise_no_alarm(recipe, dtype, framework, make_checkpoint, check_small):
    """``make audit`` has many more weights, inputs and shapes, ``test_planted_bugs.py`` every recipe."""
    report = check_small(make_checkpoint(recipe, 1), framework, dtype=dtype, seed=1)
    assert report.verdict == "pass", report.first_divergence
