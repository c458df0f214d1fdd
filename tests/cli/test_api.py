"""The public functions: what they refuse, and that the arrays they return belong to the caller."""

import sys

import numpy as np
import pytest

import triglot
from triglot.shared import inputs


def test_the_frameworks_under_test_are_installed(framework):
    assert framework in triglot.frameworks()


def test_check_in_this_process_and_in_workers_agree(make_checkpoint):
    checkpoint = make_checkpoint("dygraph-tiny")
    local, isolated = (triglot.check(checkpoint, ["torch"], isolate=isolate, threads=1) for isolate in (False, True))
    assert local.verdict == isolated.verdict == "pass"
    assert [(row.check, row.name) for row in local.rows] == [(row.check, row.name) for row in isolated.rows]


@pytest.mark.parametrize(
    ("arguments", "error", "pattern"),
    [
        ({"frameworks": ["caffe"]}, triglot.FrameworkError, "framework 'caffe'.*expected.*torch, paddle"),
        ({"frameworks": []}, triglot.FrameworkError, "frameworks.*empty"),
        ({"frameworks": "torch"}, triglot.FrameworkError, "frameworks.*'torch'.*expected a list"),
        ({"dtype": "int8"}, triglot.FrameworkError, "dtype 'int8'.*expected.*float32, float64, bfloat16"),
        ({"mode": "turbo"}, triglot.FrameworkError, "mode 'turbo'.*expected.*eager"),
        ({"device": "tpu"}, triglot.FrameworkError, "device 'tpu'.*expected.*cpu, cuda"),
        ({"pythons": {"torch": "/no/python"}}, triglot.FrameworkError, "interpreter.*/no/python"),
        ({"pythons": {"jax": sys.executable}, "frameworks": ["torch"]}, triglot.FrameworkError, "pythons names jax"),
        ({"pythons": {"torch": sys.executable}, "isolate": False}, triglot.FrameworkError, "pythons.*isolate=True"),
        ({"seed": -1}, triglot.ConfigError, "seed is -1.*expected.*0 or more"),
        ({"batches": []}, triglot.InputError, "batches is empty.*at least one batch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_check_refuses(arguments, error, pattern, make_checkpoint):
    with pytest.raises(error, match=pattern):
        triglot.check(make_checkpoint("bert-base-tiny"), **arguments)


def test_check_refuses_batches_of_another_model(make_checkpoint):
    ids = np.full((1, 2), 30000)
    foreign = inputs.encoder_batch(triglot.recipes()["minilm"], ids)
    with pytest.raises(triglot.InputError, match=r"token_ids.*30000.*expected ids from 0 to 100"):
        triglot.check(make_checkpoint("bert-base-tiny"), ["torch"], batches=[foreign])


def test_build_refuses_unknown_frameworks_and_devices(make_checkpoint):
    checkpoint = make_checkpoint("bert-base-tiny")
    with pytest.raises(triglot.FrameworkError, match=r"framework 'caffe'.*expected.*torch, paddle, jax, numpy"):
        triglot.build("caffe", checkpoint)
    with pytest.raises(triglot.FrameworkError, match=r"device 'gpu'.*expected.*cpu, cuda"):
        triglot.build("paddle", checkpoint, device="gpu")


def test_initialize_refuses_unknown_recipes_and_seeds():
    with pytest.raises(triglot.ConfigError, match=r"unknown recipe 'gpt'.*translation, prenorm, annotated"):
        triglot.initialize("gpt")
    with pytest.raises(triglot.ConfigError, match=r"seed is -1.*expected.*0 or more"):
        triglot.initialize("bert-base-tiny", seed=-1)


def test_results_belong_to_the_caller(implementation, make_checkpoint):
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
    """JAX's ``device_put`` may share the memory of an aligned array, so the model has to copy it."""
    checkpoint = make_checkpoint("bert-base-tiny")
    model = triglot.build(implementation_that_copies, checkpoint)
    before = model.encode([[1, 2, 3]])
    for tensor in checkpoint.tensors.values():
        tensor[...] = 7
    np.testing.assert_array_equal(model.encode([[1, 2, 3]]), before)
