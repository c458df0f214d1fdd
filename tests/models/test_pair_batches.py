"""Batches of an encoder-decoder, of tokens or vectors: defaults, number formats and refusals."""

from typing import Any

import numpy as np
import pytest
from tiny_configs import EMBEDDED_PAIR, TRANSLATION

from triglot.shared import inputs
from triglot.shared.errors import InputError, TrainingError
from triglot.shared.model.recipes import recipe


def test_defaults_of_a_pair_batch():
    """The first model pads with the id 2, the second has no pad id."""
    source, target = [[3, 2, 2], [4, 5, 2]], [[0, 2], [1, 3]]
    batch = inputs.pair_batch(TRANSLATION, source, target)
    valid, target_valid = [[True, False, False], [True, True, False]], [[True, False], [True, True]]
    for array, expected in (
        (batch.source, np.array(source, np.int32)),
        (batch.valid, np.array(valid)),
        (batch.target, np.array(target, np.int32)),
        (batch.target_valid, np.array(target_valid)),
    ):
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)
    unpadded = inputs.pair_batch(recipe("annotated-tiny"), source, target)
    assert unpadded.valid.all()
    assert unpadded.target_valid.all()
    explicit = inputs.pair_batch(TRANSLATION, source, target, np.ones((2, 3), np.bool_), np.ones((2, 2), np.bool_))
    assert explicit.valid.all()
    assert explicit.target_valid.all()


def test_longest_pair_with_the_last_ids_is_accepted():
    batch = inputs.pair_batch(TRANSLATION, [[38] * 19], [[40] * 23])
    assert (batch.source.shape, batch.target.shape) == ((1, 19), (1, 23))


def test_target_but_not_source_may_be_all_padding():
    assert not inputs.pair_batch(TRANSLATION, [[3]], [[2, 2]]).target_valid.any()
    with pytest.raises(InputError, match=r"row 1 of source_valid has no real token"):
        inputs.pair_batch(TRANSLATION, [[3, 2], [2, 2]], [[3], [3]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_pair_of_vectors_keeps_its_values_and_its_dtype(dtype):
    generator = np.random.default_rng(0)
    source, target = (generator.standard_normal((2, length, 24)).astype(dtype) for length in (3, 5))
    batch = inputs.pair_batch(EMBEDDED_PAIR, source, target)
    for given, kept in ((source, batch.source), (target, batch.target)):
        assert kept.dtype == dtype
        np.testing.assert_array_equal(kept, given)
    assert batch.valid.shape == (2, 3)
    assert batch.target_valid.shape == (2, 5)
    assert batch.valid.all()
    assert batch.target_valid.all()
    again: Any = inputs.check_batch(EMBEDDED_PAIR, batch)
    np.testing.assert_array_equal(again.target, target)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_ids": [[1, 2], [3, 4]]}, r"target_ids is int64 \(2, 2\); expected float32 or float64 \(2, T, 24\)"),
        ({"target_ids": np.zeros((2, 5, 23))}, r"target_ids is float64 \(2, 5, 23\); expected .* \(2, T, 24\)"),
        ({"target_ids": np.zeros((1, 5, 24))}, r"target_ids is float64 \(1, 5, 24\); expected .* \(2, T, 24\)"),
        ({"target_ids": np.zeros((2, 0, 24))}, r"target_ids is float64 \(2, 0, 24\); expected .* \(2, T, 24\)"),
        ({"target_ids": np.zeros((2, 24, 24))}, "target length 24 is over the maximum 23 of the model; cut it"),
        ({"target_ids": np.full((2, 5, 24), np.nan)}, "target_ids is not finite in float32; expected finite numbers"),
        ({"source_ids": [[1, 2], [3, 4]]}, "the embedded input is int64"),
    ],
)
def test_a_pair_of_vectors_that_does_not_fit_is_refused(changes, message):
    arrays = {"source_ids": np.zeros((2, 3, 24)), "target_ids": np.zeros((2, 5, 24)), **changes}
    with pytest.raises(InputError, match=message):
        inputs.pair_batch(EMBEDDED_PAIR, **arrays)


def test_a_pair_of_vectors_has_no_tokens_to_predict():
    batch = inputs.random_batch(EMBEDDED_PAIR, [3, 2], np.random.default_rng(0))
    message = "reads vectors and has no vocabulary, so there are no tokens to predict"
    with pytest.raises(InputError, match=message):
        inputs.labelled(EMBEDDED_PAIR, batch, [[0, 1, 2], [1, 2, 3]])
    with pytest.raises(InputError, match=message):
        inputs.teacher_forcing(EMBEDDED_PAIR, np.zeros((2, 3, 24)), [[0, 1], [1, 2]])
    with pytest.raises(TrainingError, match=r"encoder_decoder without a vocabulary, which has no loss; train one with"):
        inputs.check_trainable(EMBEDDED_PAIR)
