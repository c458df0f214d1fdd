"""Batches are read from files, with Triglot's names or those of a tokenizer."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny_configs import EMBEDDED, ERNIE, TRANSLATION

from triglot import models
from triglot.shared import inputs
from triglot.shared.errors import InputError
from triglot.shared.inputs import read_batch


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
