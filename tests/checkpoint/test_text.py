"""Settings of the text: what becomes tokens, stored beside the model without changing it."""

from dataclasses import replace

import pytest
from checkpoint_files import edit_manifest, read_members, write_members

from triglot.shared import checkpoint
from triglot.shared.checkpoint import Checkpoint, TextSettings
from triglot.shared.errors import CheckpointError

SETTINGS = TextSettings(7, {"query": "query: ", "ä {,[": "\n\x00\U0001f600 [1], {a}", "": ""}, "query", "dot")
DAMAGED = r"manifest\.json is damaged"


@pytest.fixture
def plain(make_checkpoint):
    config = make_checkpoint("bert-base-tiny").config
    pooled = {"heads_on_top": ("sentence_embedding",), "sentence_pooling": "mean", "sentence_normalized": True}
    return make_checkpoint(replace(config, **pooled))


@pytest.fixture
def path(plain, tmp_path):
    path = tmp_path / "model.npz"
    checkpoint.save(Checkpoint(plain.config, plain.tensors, text=SETTINGS), path)
    return path


def test_settings_come_back_and_change_nothing_else(plain, path, tmp_path):
    checkpoint.save(plain, tmp_path / "plain.npz")
    loaded = checkpoint.load(path, "full")
    assert loaded.text == SETTINGS
    assert loaded.text is not None
    assert list(loaded.text.prompts.items()) == list(SETTINGS.prompts.items())
    assert loaded.digest == plain.digest
    with_text, without = read_members(path), read_members(tmp_path / "plain.npz")
    assert with_text[0].pop("text")
    assert with_text == without
    checkpoint.save(loaded, tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == path.read_bytes()


def test_as_many_commas_as_are_allowed_can_be_read_back(plain, tmp_path):
    most = TextSettings(7, {"a": "," * 3995})
    checkpoint.save(Checkpoint(plain.config, plain.tensors, text=most), tmp_path / "model.npz")
    assert checkpoint.load(tmp_path / "model.npz").text == most


def test_an_edit_without_changes_is_accepted(path):
    edit_manifest(path, lambda manifest: None)
    assert checkpoint.load(path).text == SETTINGS


def test_a_changed_prompt_is_noticed(path):
    manifest, members = read_members(path)
    manifest["text"]["prompts"]["query"] = "Query: "
    write_members(path, manifest, members)
    with pytest.raises(CheckpointError, match=DAMAGED):
        checkpoint.load(path)


@pytest.mark.parametrize(
    "fields",
    [
        *({"max_tokens": value} for value in (0, 7.0, True, "7", None)),
        *({"prompts": value} for value in (None, [], {"query": 1}, {"query": None})),
        *({"default_prompt": value} for value in ("passage", 1)),
        *({"similarity": value} for value in ("Dot", 1)),
        {"tokenizer": "bert"},
    ],
)
def test_impossible_settings_are_refused(fields, path):
    edit_manifest(path, lambda manifest: manifest["text"].update(fields))
    with pytest.raises(CheckpointError, match=DAMAGED):
        checkpoint.load(path)


@pytest.mark.parametrize("value", [None, [], "text", {}])
def test_settings_that_are_no_settings_are_refused(value, path):
    edit_manifest(path, lambda manifest: manifest.update(text=value))
    with pytest.raises(CheckpointError, match=DAMAGED):
        checkpoint.load(path)


def test_settings_beyond_the_model_are_refused(path):
    edit_manifest(path, lambda manifest: manifest["text"].update(max_tokens=1000))
    with pytest.raises(CheckpointError, match=r"cannot read .*max_tokens is 1000; expected at most source_max_length"):
        checkpoint.load(path)


def test_inspect_shows_them(path, command):
    code, output, _ = command("inspect", path)
    assert code == 0
    assert "max_tokens" in output
    assert "query: " in output
