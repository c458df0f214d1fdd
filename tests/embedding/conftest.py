"""A small sentence-transformers folder with the tokenizer of the trained MiniLM, and texts of every kind."""

from dataclasses import replace

import pytest

import triglot
from triglot import models
from triglot.shared.checkpoint import TextSettings
from triglot.shared.model.config import DenseLayer
from triglot.shared.model.recipes import recipe

CONFIG = replace(
    recipe("bert-base-tiny"),
    source_vocabulary=30522,
    heads_on_top=("sentence_embedding",),
    sentence_pooling="mean",
    sentence_layers=(DenseLayer(size=7, bias=True, activation="tanh"),),
    sentence_normalized=True,
)


@pytest.fixture(scope="session")
def tokenizer():
    """The tokenizer.json of MiniLM."""
    return models.tokenizer_file(models.sentence_encoder("minilm"))


@pytest.fixture
def sentence_folder(tmp_path, make_checkpoint, tokenizer):
    """A folder of sentence-transformers: a small BERT, mean pooling, a dense layer, normalised, with prompts."""
    text = TextSettings(20, {"query": "query: ", "passage": ""}, "query")
    files = {name: tokenizer.with_name(name) for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")}
    checkpoint = replace(make_checkpoint(CONFIG), text=text, tokenizer=files)
    folder = tmp_path / "sentence-model"
    triglot.port(checkpoint, folder, target_dialect="sentence-transformers")
    return folder
