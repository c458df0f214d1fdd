"""Greedy decoding, with a key-value cache and without one, as in article 000."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import triglot
from triglot import impls
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import InputError
from triglot.shared.model.recipes import recipe

SPECIAL = {"start_id": 0, "end_id": 1, "pad_id": 2}
CONFIGS = {
    "translation": recipe("translation-tiny"),
    "annotated": replace(recipe("annotated-tiny"), **SPECIAL),
    "prenorm": replace(recipe("prenorm-tiny"), **SPECIAL),
    "learned positions, added mask, post-norm": replace(
        recipe("translation-tiny"), positions="learned", position_offset=2, masking="add", masking_value=-10000.0,
        pre_process="", post_process="an", normalize_memory=False,
    ),
}  # fmt: skip


def varied_model(config, seed=5):
    """Return weights so large that the likeliest token varies, and is the end or padding now and then."""
    checkpoint = triglot.initialize(config, seed)
    generator = np.random.default_rng(seed)
    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        noise = generator.normal(0, 0.9 if "token" in name else 0.3, tensor.shape)
        tensors[name] = (tensor + noise).astype(np.float32)
    return Checkpoint(config, tensors)


def sources(config, rows=12, seed=1):
    generator = np.random.default_rng(seed)
    ids = generator.integers(3, config.source_vocabulary, (rows, min(config.source_max_length, 11)))
    ids[: rows // 2, 6:] = config.pad_id
    return ids


@pytest.fixture(params=CONFIGS)
def model_config(request):
    return CONFIGS[request.param]


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "recomputed"])
def test_every_token_is_the_likeliest(implementation, cached):
    """Compare with the loop of article 000 around ``forward``, up to the end id."""
    config = CONFIGS["translation"]
    checkpoint, ids = varied_model(config), sources(config)
    model = impls.build(implementation, checkpoint, dtype="float64")
    generated = model.generate(ids, max_length=14, cached=cached)
    assert generated.shape == (len(ids), 14)
    assert generated.dtype == np.int32
    assert len(np.unique(generated)) > 5, "a model that repeats one token proves nothing"
    oracle = impls.build("numpy", checkpoint)
    for row, source in zip(generated, ids, strict=True):
        target = [config.start_id]
        while len(target) < 14 and target[-1] not in (config.end_id, config.pad_id):
            target.append(int(oracle.forward(source[None], [target])[0, -1].argmax()))
        np.testing.assert_array_equal(row[: len(target)], target)


def test_cache_does_not_change_the_ids(implementation, model_config):
    checkpoint, ids = varied_model(model_config), sources(model_config)
    model = impls.build(implementation, checkpoint, dtype="float64")
    np.testing.assert_array_equal(model.generate(ids), model.generate(ids, cached=False))


def test_every_framework_generates_the_same(framework, model_config):
    checkpoint, ids = varied_model(model_config, seed=3), sources(model_config)
    expected = impls.build("numpy", checkpoint).generate(ids)
    np.testing.assert_array_equal(impls.build(framework, checkpoint, dtype="float64").generate(ids), expected)


def test_padding_follows_the_end(implementation):
    config = CONFIGS["translation"]
    for seed in range(20):
        model = impls.build("numpy", varied_model(config, seed))
        ids = model.generate(sources(config))
        ended = (ids == config.end_id).any(axis=1)
        if ended.any() and not ended.all():
            break
    else:
        pytest.fail("no model ends some of its sentences and not others")
    generated = impls.build(implementation, varied_model(config, seed), dtype="float64").generate(sources(config))
    np.testing.assert_array_equal(generated, ids)
    for row in generated[ended]:
        end = int((row == config.end_id).argmax())
        np.testing.assert_array_equal(row[end + 1 :], config.pad_id)
    assert (generated[:, 0] == config.start_id).all()


def test_rows_do_not_depend_on_each_other(implementation):
    config = CONFIGS["translation"]
    model, ids = impls.build(implementation, varied_model(config), dtype="float64"), sources(config)
    together = model.generate(ids)
    np.testing.assert_array_equal(model.generate(ids[2:3, :6]), together[2:3])


@pytest.mark.parametrize("length", [1, 2, 23])
def test_max_length_cuts_the_target(implementation, length):
    config = CONFIGS["translation"]
    model = impls.build(implementation, varied_model(config), dtype="float64")
    whole = model.generate(sources(config))
    assert whole.shape[1] == config.target_max_length == 23
    np.testing.assert_array_equal(model.generate(sources(config), max_length=length), whole[:, :length])


@pytest.mark.long(framework="jax")
def test_generation_uses_trained_weights(framework):
    config = CONFIGS["translation"]
    checkpoint, ids = varied_model(config), sources(config)
    model = impls.build(framework, checkpoint)
    before = model.generate(ids)
    model.begin_training(triglot.Plan(rate=0.5))
    model.training_step(triglot.teacher_forcing(config, ids, np.full((len(ids), 5), 7)))
    after = model.generate(ids)
    assert (before != after).any()
    again = impls.build(framework, Checkpoint(config, model.weights())).generate(ids)
    np.testing.assert_array_equal(after, again)


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"max_length": 0}, "max_length is 0; expected a whole number from 1 to 23"),
        ({}, {"max_length": 24}, "max_length is 24; expected a whole number from 1 to 23"),
        ({}, {"max_length": 3.0}, r"max_length is 3\.0"),
        ({}, {"max_length": True}, "max_length is True"),
        ({"start_id": None}, {}, r"start_id has to be known; set it"),
        ({"end_id": None, "pad_id": None}, {}, r"end_id, pad_id has to be known"),
        ({"start_id": 2}, {}, r"start_id and pad_id have to differ.*2"),
        ({"masking": "add", "masking_value": -3.0}, {}, r"a masking_value of -3\.0 does not hide the tokens"),
        ({}, {"source_ids": [[99]]}, "source_ids holds 99; expected ids from 0 to 38"),
        ({}, {"source_ids": [[2, 2]]}, "row 0 of source_valid has no real token"),
        ({}, {"source_ids": 3}, r"source_ids is int64 \(\); expected integers \(B, S\)"),
        ({}, {"source_ids": [[]]}, "the batch is empty"),
    ],
    ids=str,
)
def test_impossible_generation_is_refused(implementation, changes, arguments, message):
    model = impls.build(implementation, triglot.initialize(replace(CONFIGS["translation"], **changes)))
    with pytest.raises(InputError, match=message):
        model.generate(**{"source_ids": [[3, 4]], **arguments})


def test_model_without_a_decoder_refuses_to_generate(implementation):
    with pytest.raises(InputError, match="no decoder"):
        impls.build(implementation, triglot.initialize("bert-base-tiny")).generate([[3, 4]])


@pytest.mark.usefixtures("without_cpp")
def test_compiled_step_generates_the_same(framework):
    config = replace(CONFIGS["translation"], layers=1, decoder_layers=1)  # torch.compile takes long for each layer
    model: Any = impls.build(framework, varied_model(config))
    ids = sources(config)
    if framework == "jax":
        assert not hasattr(model.backend.generator, "compile"), "JAX compiles the whole loop"
        return
    eager = model.generate(ids, max_length=6), model.generate(ids, max_length=6, cached=False)
    model.backend.generator.compile()
    np.testing.assert_array_equal(model.generate(ids, max_length=6), eager[0])
    np.testing.assert_array_equal(model.generate(ids, max_length=6, cached=False), eager[1])
