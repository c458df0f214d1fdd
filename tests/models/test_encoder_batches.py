"""Batches of an encoder: defaults, number formats and refusals. Batches of every kind are rebuilt and checked again."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from tiny_configs import BERT, EMBEDDED, ERNIE, TRANSLATION

from triglot.shared import inputs
from triglot.shared.errors import InputError
from triglot.shared.inputs import random_batch
from triglot.shared.model.recipes import recipe


def test_defaults_of_an_encoder_batch():
    batch: Any = inputs.encoder_batch(ERNIE, [[1, 2, 3], [4, 5, 6]])
    for array, expected in (
        (batch.source, np.array([[1, 2, 3], [4, 5, 6]], np.int32)),
        (batch.valid, np.ones((2, 3), np.bool_)),
        (batch.segment_ids, np.zeros((2, 3), np.int32)),
        (batch.task_ids, np.zeros((2, 3), np.int32)),
    ):
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.dtype(">i8")])
def test_ids_of_any_integer_type_become_int32(dtype):
    ids = np.array([[1, 100], [0, 3]], dtype)
    batch: Any = inputs.encoder_batch(ERNIE, ids, segment_ids=ids % 4, task_ids=ids % 16)
    for array, expected in (
        (batch.source, [[1, 100], [0, 3]]),
        (batch.segment_ids, [[1, 0], [0, 3]]),
        (batch.task_ids, [[1, 4], [0, 3]]),
    ):
        assert array.dtype == np.int32
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_embedded_input_keeps_its_values_and_its_dtype(dtype):
    vectors = np.random.default_rng(0).standard_normal((2, 3, 24)).astype(dtype)
    batch: Any = inputs.encoder_batch(EMBEDDED, vectors)
    assert batch.source.dtype == dtype
    np.testing.assert_array_equal(batch.source, vectors)
    np.testing.assert_array_equal(batch.valid, np.ones((2, 3), np.bool_))


def test_arguments_are_not_changed():
    arguments = {
        "token_ids": np.array([[1, 2], [3, 0]]),
        "valid": np.array([[True, True], [True, False]]),
        "segment_ids": np.array([[0, 3], [2, 1]]),
        "task_ids": np.array([[15, 0], [7, 1]]),
    }
    before = {name: array.copy() for name, array in arguments.items()}
    batch: Any = inputs.encoder_batch(ERNIE, **arguments)
    batch.source[:] = 0
    batch.segment_ids[:] = 0
    batch.task_ids[:] = 0
    for name, array in arguments.items():
        assert array.dtype == before[name].dtype
        np.testing.assert_array_equal(array, before[name], err_msg=name)


@pytest.mark.parametrize(
    "batch",
    [
        inputs.encoder_batch(ERNIE, [[1, 2]], segment_ids=[[0, 1]], task_ids=[[2, 3]]),
        inputs.pair_batch(TRANSLATION, [[3, 4]], [[5, 6, 7]]),
        inputs.teacher_forcing(TRANSLATION, [[3, 4]], [[5, 6, 7]]),
        inputs.taught(ERNIE, inputs.encoder_batch(ERNIE, [[1, 2]]), np.ones((1, 2, ERNIE.hidden_size))),
        random_batch(recipe("multihead-tiny"), [3, 2], np.random.default_rng(0)),
    ],
    ids=["encoder", "encoder-decoder", "training", "distillation", "attention"],
)
def test_batch_is_rebuilt_from_its_arrays(batch):
    arrays = batch.arrays()
    assert "valid" in arrays
    for name, array in arrays.items():
        assert array is getattr(batch, name)
    rebuilt = inputs.batch_from_arrays(batch.config, arrays)
    assert type(rebuilt) is type(batch)
    for field in fields(batch):
        assert getattr(rebuilt, field.name) is getattr(batch, field.name)


def test_segment_and_task_ids_are_none_exactly_when_the_model_has_none():
    """ERNIE has both, BERT only segments, an encoder of vectors neither."""
    ids = [[1, 2], [3, 4]]
    for config, source, segments, tasks in (
        (ERNIE, ids, True, True),
        (BERT, ids, True, False),
        (EMBEDDED, np.zeros((2, 2, 24)), False, False),
    ):
        batch: Any = inputs.encoder_batch(config, source)
        assert (batch.segment_ids is not None, batch.task_ids is not None) == (segments, tasks)


def test_batch_of_another_kind_is_refused():
    batch: Any = inputs.encoder_batch(TRANSLATION, [[3, 4]])
    with pytest.raises(InputError, match=r"EncoderBatch; expected PairBatch.* encoder_decoder"):
        inputs.check_batch(TRANSLATION, batch)
    with pytest.raises(InputError, match=r"PairBatch; expected EncoderBatch.* encoder"):
        inputs.check_batch(BERT, inputs.pair_batch(TRANSLATION, [[3, 4]], [[5]]))
    with pytest.raises(InputError, match=r"the batch is a list; expected a Batch"):
        inputs.check_batch(BERT, [[1, 2]])


def test_batch_is_checked_again():
    """It may have been changed, or made for another model."""
    batch: Any = inputs.encoder_batch(BERT, [[1, 2, 100]])
    changed = replace(batch, source=np.array([[1, 2, 101]]))
    with pytest.raises(InputError, match=r"token_ids holds 101; expected ids from 0 to 100"):
        inputs.check_batch(BERT, changed)
    with pytest.raises(InputError, match=r"token_ids holds 101; expected ids from 0 to 100"):
        inputs.to_train(BERT, replace(changed, teacher=np.zeros((1, 3, BERT.hidden_size), np.float32)))
    without_segments: Any = inputs.check_batch(replace(BERT, segments=0), batch)
    assert without_segments.segment_ids is None
    with pytest.raises(InputError, match=r"token_ids holds 100; expected ids from 0 to 49"):
        inputs.check_batch(replace(BERT, source_vocabulary=50), batch)
    segmented = inputs.encoder_batch(BERT, [[1, 2]], segment_ids=[[0, 1]])
    with pytest.raises(InputError, match="segment_ids was given, but this model has none"):
        inputs.check_batch(replace(BERT, segments=0), segmented)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": [1, 2]}, r"token_ids is int64 \(2,\); expected integers \(B, S\)"),
        ({"token_ids": [[[1, 2]]]}, r"token_ids is int64 \(1, 1, 2\); expected integers"),
        ({"token_ids": [[1.0, 2.0]]}, r"token_ids is float64.*expected integers"),
        ({"token_ids": [[True, False]]}, r"token_ids is bool.*expected integers"),
        ({"token_ids": [["a", "b"]]}, r"token_ids is <U1.*expected integers"),
        ({"token_ids": [[2**70, 1]]}, r"token_ids is object.*expected integers"),
        ({"token_ids": np.zeros((0, 3), int)}, r"batch is empty, shape \(0, 3\).*at least one"),
        ({"token_ids": np.zeros((2, 0), int)}, r"batch is empty, shape \(2, 0\).*at least one"),
        ({"token_ids": [[1] * 38]}, "length 38 is over the maximum 37"),
        ({"token_ids": [[0, -1]]}, r"token_ids holds -1; expected ids from 0 to 100.*tokenizer"),
        ({"token_ids": [[101, 0]]}, r"token_ids holds 101; expected ids from 0 to 100.*tokenizer"),
        ({"token_ids": [[2**32 + 1, 0]]}, "token_ids holds 4294967297; expected ids from 0 to 100"),
        ({"valid": [[1, 1]]}, r"valid is int64.*expected bool \(1, 2\), True for real tokens"),
        ({"valid": [[1.0, 0.0]]}, r"valid is float64.*expected bool"),
        ({"valid": [True, True]}, r"valid is bool \(2,\); expected bool \(1, 2\)"),
        ({"valid": [[True]]}, r"valid is bool \(1, 1\); expected bool \(1, 2\)"),
        (
            {"token_ids": [[1, 2], [3, 4]], "valid": [[True, False], [False, False]]},
            "row 1 of valid has no real token; leave",
        ),
        ({"task_ids": [[0, 0]]}, r"task_ids.*this model has none; leave it out"),
        ({"segment_ids": [[0, 1, 0]]}, r"segment_ids is int64 \(1, 3\); expected integers \(1, 2\)"),
        ({"segment_ids": [0, 1]}, r"segment_ids is int64 \(2,\); expected integers \(1, 2\)"),
        ({"segment_ids": [[0.0, 1.0]]}, r"segment_ids is float64.*expected integers"),
        ({"segment_ids": [[0, 2]]}, "segment_ids holds 2; expected ids from 0 to 1"),
        ({"segment_ids": [[-3, 0]]}, "segment_ids holds -3; expected ids from 0 to 1"),
    ],
)
def test_input_that_does_not_fit_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        inputs.encoder_batch(BERT, **{"token_ids": [[1, 2]], **changes})


def test_task_ids_are_checked_like_segment_ids():
    with pytest.raises(InputError, match=r"^task_ids holds 16; expected ids from 0 to 15,"):
        inputs.encoder_batch(ERNIE, [[1]], task_ids=[[16]])
    with pytest.raises(InputError, match=r"^task_ids is int64 \(1, 2\); expected integers \(1, 1\)"):
        inputs.encoder_batch(ERNIE, [[1]], task_ids=[[1, 1]])


def test_segment_ids_are_refused_by_a_model_without_segments():
    with pytest.raises(InputError, match="segment_ids was given, but this model has none; leave it out"):
        inputs.encoder_batch(replace(BERT, segments=0), [[1, 2]], segment_ids=[[0, 0]])


def test_longest_input_with_the_last_id_is_accepted():
    batch: Any = inputs.encoder_batch(BERT, [[100] * 37], segment_ids=[[1] * 37])
    assert batch.source.shape == (1, 37)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.zeros((2, 3), np.float32), r"float32 \(2, 3\); expected float32 or float64 \(B, S, 24\)"),
        (np.zeros((2, 3, 23), np.float32), r"float32 \(2, 3, 23\); expected float32 or float64"),
        (np.zeros((2, 3, 24), np.float16), r"float16.*expected float32 or float64"),
        (np.zeros((2, 3, 24), np.int64), r"int64.*expected float32 or float64"),
        (np.zeros((2, 0, 24), np.float32), r"batch is empty, shape \(2, 0, 24\)"),
        (np.zeros((1, 38, 24), np.float32), "length 38 is over the maximum 37"),
        (np.full((1, 2, 24), np.nan), "not finite"),
        (np.full((1, 2, 24), -np.inf, np.float32), "not finite"),
    ],
)
def test_embedded_input_that_does_not_fit_is_refused(vectors, message):
    with pytest.raises(InputError, match=message):
        inputs.encoder_batch(EMBEDDED, vectors)
