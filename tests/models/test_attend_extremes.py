"""Attention stays finite if a query may attend to nothing, and with the lowest numbers of a format as a bias."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_inputs import CONFIG, ROWS, SOURCES, SQUARE, vectors

import triglot
from triglot import impls
from triglot.parity.budgets import UNIT_ROUNDOFF, budget
from triglot.parity.truth import Reference, distance
from triglot.shared import inputs
from triglot.shared.arrays import HALVES
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.choices import DTYPES
from triglot.shared.model.recipes import recipe

LOWEST = float(np.finfo(np.float32).min)
# Row 0 has no real key, and query 2 of row 1 may attend to nothing.
NOTHING = {
    "key_valid": np.array([[False] * SOURCES, *[[True] * SOURCES] * 3]),
    "bias": np.zeros((ROWS, 1, *SQUARE), np.float32),
}
NOTHING["bias"][1, :, 2] = -np.inf
MASKINGS: dict[str, dict[str, Any]] = {
    "exclude": {"masking": "exclude"},
    "fill": {"masking": "fill", "masking_value": -1e9},
    "fill the least": {"masking": "fill", "masking_value": -1e308},
    "add": {"masking": "add", "masking_value": -1e4},
    "add the least": {"masking": "add", "masking_value": -1e308},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masking", MASKINGS)
def test_query_that_may_attend_to_nothing(implementation, masking, dtype, sharp_attention):
    """With "exclude" the weights are 0, with "fill" they are uniform. (PyTorch returns NaN.)

    With "add" the value cancels, as if nothing were forbidden. But next to a value below -1e9, float32 has no digits
    left for the score, so the weights are uniform too.
    """
    if dtype in HALVES and implementation in ("paddle", "numpy"):
        with pytest.raises(triglot.FrameworkError, match=rf"no {dtype} on a CPU|dtype '{dtype}' is not supported"):
            impls.build(implementation, sharp_attention, dtype=dtype)
        return
    chosen, config = MASKINGS[masking], replace(CONFIG, **MASKINGS[masking])
    given = vectors()
    model = impls.build(implementation, Checkpoint(config, sharp_attention.tensors), dtype=dtype)
    output, weights = (value.astype(np.float64) for value in model.attend(**given, **NOTHING))
    assert np.isfinite(output).all()
    assert np.isfinite(weights).all()
    unit = UNIT_ROUNDOFF[dtype]
    for row, queries in ((0, slice(None)), (1, slice(2, 3))):
        if masking == "exclude":
            np.testing.assert_array_equal(weights[row, queries], 0)
            bias = sharp_attention.tensors["attention.output.bias"].astype(np.float64)
            np.testing.assert_allclose(
                output[row, queries], np.broadcast_to(bias, output[row, queries].shape), rtol=unit
            )
        elif chosen["masking"] == "fill" or masking == "add the least":
            # A softmax of equal numbers and a mean of three of them: a few roundings.
            np.testing.assert_allclose(weights[row, queries], 1 / SOURCES, rtol=8 * unit)
        else:
            free = impls.build("numpy", Checkpoint(config, sharp_attention.tensors)).attend(**given)[1][row, queries]
            # A score of up to 30 keeps the precision of 10,000 in float32, or its own precision in 16 bits.
            precision = max(1e4 * min(unit, 2.0**-24), 30 * unit)
            np.testing.assert_allclose(weights[row, queries], free, rtol=0, atol=4 * precision)
    assert (weights[2:].sum(axis=-1) > 0.9).all()


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_vectors_too_large_for_float16_are_refused(framework, name, sharp_attention):
    """Otherwise 100,000 would silently become infinity, or 65,504."""
    if framework == "paddle":
        with pytest.raises(triglot.FrameworkError, match="no float16 on a CPU"):
            impls.build(framework, sharp_attention, dtype="float16")
        return
    given = vectors()
    given[name] = given[name].copy()
    given[name][0, 0, 0] = -1e5
    with pytest.raises(triglot.InputError, match=f"^{name} holds a number beyond 65504, which float16 cannot hold"):
        impls.build(framework, sharp_attention, dtype="float16").attend(**given)
    impls.build(framework, sharp_attention, dtype="bfloat16").attend(**given)


def test_token_ids_too_large_for_float16_are_not():
    arrays = {"source": np.array([[119_546]], np.int32)}
    assert inputs.fit_dtype(arrays, "float16") == arrays


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masking", MASKINGS)
@pytest.mark.parametrize("lowest", [LOWEST, -1e38, -1e308], ids=["float32", "1e38", "1e308"])
def test_lowest_bias_never_gives_nan(implementation, masking, lowest, dtype, sharp_attention):
    """The usual mask of transformers is a format's lowest number, possibly next to an equally low masking value.

    A query that has it for every key keeps no digit of its scores, so its weights are uniform. Float16 is an exception:
    scores are added in float32, where its lowest number, -65,504, leaves some digits.
    """
    if dtype in HALVES and implementation in ("paddle", "numpy"):
        with pytest.raises(triglot.FrameworkError, match=rf"no {dtype} on a CPU|dtype '{dtype}' is not supported"):
            impls.build(implementation, sharp_attention, dtype=dtype)
        return
    config = replace(CONFIG, **MASKINGS[masking])
    model = impls.build(implementation, Checkpoint(config, sharp_attention.tensors), dtype=dtype)
    bias = np.full(SQUARE, lowest)
    bias[0, 1:] = 0
    for masks in ({}, {"key_valid": NOTHING["key_valid"]}):
        output, weights = (value.astype(np.float64) for value in model.attend(**vectors(), **masks, bias=bias))
        assert np.isfinite(output).all()
        assert np.isfinite(weights).all()
        # Paddle's softmax clips exponents at -64.
        np.testing.assert_allclose(weights[1:, 0, 0], 0, rtol=0, atol=np.exp(-63))
        if dtype != "float16":
            np.testing.assert_allclose(weights[1:, 1:], 1 / SOURCES, rtol=2.0**-7)
            continue
        free = impls.build("numpy", Checkpoint(config, sharp_attention.tensors)).attend(**vectors(), **masks)[1]
        precision = max(65504 * 2.0**-24, 30 * UNIT_ROUNDOFF[dtype])
        np.testing.assert_allclose(weights[1:, 1:], free[1:, 1:], rtol=0, atol=4 * precision)


@pytest.mark.long(framework="jax", dtype="float64")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["translation-tiny", "annotated-tiny", "prenorm-tiny"])
def test_target_that_begins_with_padding_has_finite_scores(framework, name, dtype, make_checkpoint):
    """Its first queries may attend to nothing: they see only padding, and later tokens are hidden."""
    config = replace(recipe(name), pad_id=2)
    checkpoint = make_checkpoint(config)
    source, target = np.array([[3, 4, 5], [6, 7, 2]]), np.array([[2, 2, 9, 10], [0, 12, 2, 2]])
    scores = impls.build(framework, checkpoint, dtype=dtype).forward(source, target)
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(scores[target == 2], 0)
    batch = inputs.pair_batch(config, source, target)
    expectation = Reference(checkpoint, dtype).truth_of_values(batch, {})
    weights = expectation.values["decoder.layers.0.self_attention.weights"][0, :, :2]
    np.testing.assert_allclose(weights, 0 if config.masking == "exclude" else 1 / 4, rtol=1e-6)
    where = f"heads.{config.heads_on_top[0]}"
    truth = expectation.values[where]
    assert distance(scores, truth, None) <= budget(
        float(expectation.noise[where].max()), float(np.abs(truth).max()), dtype
    )
