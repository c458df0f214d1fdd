"""Random batches depend only on the seed, and their rows differ in length."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from batches import lengths_of
from tiny_configs import BERT, EMBEDDED, EMBEDDED_PAIR, ERNIE, TRANSLATION

from triglot.shared import inputs
from triglot.shared.inputs import random_batches
from triglot.shared.model.recipes import recipe


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
