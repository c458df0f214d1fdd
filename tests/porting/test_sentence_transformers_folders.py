"""Folders of sentence-transformers as other releases and hubs store them are read. What cannot be kept is refused."""

import json
import os
import shutil
from dataclasses import replace

import pytest
from safetensors.numpy import load_file, save_file
from sentence_models import SENTENCE_MODELS, text_of

from triglot import models, port
from triglot.shared.errors import PortingError

ENCODER_ALONE = "; to port the encoder alone, name the folder of the Transformer and the dialect huggingface"


@pytest.fixture
def folder(save_sentence_model, tmp_path):
    """A folder to be changed."""
    shutil.copytree(save_sentence_model("cls, dense")[1], tmp_path / "model")
    return tmp_path / "model"


def edit(path, **fields):
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**content, **fields}))


def edit_modules(folder, change):
    modules = json.loads((folder / "modules.json").read_text())
    change(modules)
    (folder / "modules.json").write_text(json.dumps(modules))


def test_an_encoder_in_a_folder_of_its_own_is_read(folder):
    """As releases before 2.0 saved it, with the lengths in a file named after the model type."""
    expected = port(folder)
    (folder / "0_Transformer").mkdir()
    for path in folder.iterdir():
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(folder / "0_Transformer" / path.name)
    edit_modules(folder, lambda modules: modules[0].update(path="0_Transformer"))
    length = {"max_seq_length": 11, "do_lower_case": False}
    (folder / "0_Transformer" / "sentence_bert_config.json").unlink()
    (folder / "0_Transformer" / "sentence_roberta_config.json").write_text(json.dumps(length))
    ported = port(folder)
    assert ported.digest == expected.digest
    assert ported.text == replace(text_of(expected), max_tokens=11)
    assert models.resolve(str(folder)).tokenizer == folder / "0_Transformer" / "tokenizer.json"


def test_several_pooling_flags_and_their_default(folder):
    path = folder / "1_Pooling" / "config.json"
    path.write_text(json.dumps({"word_embedding_dimension": 24, "pooling_mode_max_tokens": True}))
    assert port(folder).config.sentence_pooling == "max"
    path.write_text(json.dumps({"word_embedding_dimension": 24}))
    assert port(folder).config.sentence_pooling == "mean"
    path.write_text(json.dumps({"embedding_dimension": 24, "pooling_mode": ["cls"]}))
    assert port(folder).config.sentence_pooling == "cls"
    flags = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    path.write_text(json.dumps({"word_embedding_dimension": 24, **flags}))
    with pytest.raises(PortingError, match=r"pooling_mode is \['cls', 'mean'\]; expected one of mean, cls, max"):
        port(folder)


def test_a_limit_beyond_the_positions_is_that_of_the_positions(folder):
    edit(folder / "tokenizer_config.json", model_max_length=1e30)
    assert text_of(folder).max_tokens == 40
    edit(folder / "tokenizer_config.json", model_max_length=None)
    assert text_of(folder).max_tokens == 40
    edit(folder / "sentence_bert_config.json", max_seq_length=41)
    assert text_of(folder).max_tokens == 40


REFUSED = {
    "modules": ("modules.json", None, "list of modules is 'Transformer'; expected Transformer, Pooling, any number"),
    "pooling": (
        "1_Pooling/config.json",
        {"pooling_mode": "lasttoken"},
        "is 'lasttoken'; expected one of mean, cls, max",
    ),
    "pooled size": ("1_Pooling/config.json", {"embedding_dimension": 25}, "is 25; expected 24, the hidden size"),
    "prompt left out": ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt is False; expected True"),
    "activation": (
        "2_Dense/config.json",
        {"activation_function": "os.system"},
        "is 'os.system'; expected one of torch",
    ),
    "residual": ("2_Dense/config.json", {"use_residual": True}, "use_residual is True; expected False"),
    "tokens": ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "expected 'sentence_embedding'"),
    "size": ("2_Dense/config.json", {"out_features": "17"}, "out_features is '17'; expected a whole number"),
    "bias": ("2_Dense/config.json", {"bias": 1}, "bias is 1; expected true or false"),
    "chain": ("3_Dense/config.json", {"in_features": 18}, "in_features is 18; expected 17, the size of what it reads"),
    "shape": (
        "2_Dense/config.json",
        {"in_features": 24, "out_features": 16},
        r"linear.weight is float32 \(17, 24\), exp",
    ),
    "no bias": ("2_Dense/config.json", {"bias": False}, "unexpected linear.bias; restore the file"),
    "lower case": ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case is True; expected False"),
    "task": ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'"),
    "arguments": ("sentence_bert_config.json", {"model_args": {"a": 1}}, "model_args is .*; expected {}"),
    "length": ("sentence_bert_config.json", {"max_seq_length": 0}, "maximum number of tokens is 0; expected a whole"),
    "sparse": ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type is 'SparseEncoder'"),
    "cut": ("config_sentence_transformers.json", {"truncate_dim": 2}, "truncate_dim is 2; expected None"),
    "prompts": (
        "config_sentence_transformers.json",
        {"prompts": ["a"]},
        r"prompts is \['a'\]; expected Unicode texts by name",
    ),
    "default": (
        "config_sentence_transformers.json",
        {"default_prompt_name": "b"},
        "default_prompt is 'b'; expected None",
    ),
    "similarity": (
        "config_sentence_transformers.json",
        {"similarity_fn_name": "l1"},
        "similarity is 'l1'; expected None",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_kept_is_refused_by_name(kind, folder):
    name, fields, message = REFUSED[kind]
    if fields is None:
        edit_modules(folder, lambda modules: modules.__delitem__(slice(1, None)))
    else:
        edit(folder / name, **fields)
    with pytest.raises(PortingError, match=message):
        port(folder)
    assert port(folder, source_dialect="huggingface").config.heads_on_top == ("pooler",)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "sentence_transformers.models.CNN"}, f"type of module 2 is .*CNN'; expected Trans.*{ENCODER_ALONE}"),
        ({"type": "my.Dense"}, "type of module 2 is 'my.Dense'"),
        ({"type": "sentence_transformers.sparse_encoder.modules.Dense"}, "type of module 2 is"),
        ({"type": 3}, "type of module 2 is 3"),
        ({"path": "../2_Dense"}, "path of module 2 is '../2_Dense'; expected a folder inside the model's"),
        *(
            ({"path": path}, "path of module 2 is '.*'; expected a folder inside the model's; to port the encoder")
            for path in ("/tmp", "..", "a/../../b", "..\\2_Dense", "2_Dense\\x", "C:2_Dense", "C:\\x", "a\0")
        ),
        ({"path": None}, "path of module 2 is None"),
        ({"kwargs": ["task"]}, r"kwargs is \['task'\]; expected \[\]"),
    ],
)
def test_unknown_modules_are_refused(fields, message, folder):
    edit_modules(folder, lambda modules: modules[2].update(fields))
    with pytest.raises(PortingError, match=message):
        port(folder)


@pytest.mark.parametrize(("number", "name"), [(0, "0_Transformer"), (1, "1_Pooling"), (2, "2_Dense")])
def test_a_module_behind_a_link_out_of_the_folder_is_refused(number, name, folder, tmp_path):
    (folder / name).rename(tmp_path / name) if number else shutil.copytree(folder, tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    edit_modules(folder, lambda modules: modules[number].update(path=name))
    with pytest.raises(
        PortingError, match=f"path of module {number} is '{name}'; expected a folder inside the model's"
    ):
        port(folder)


def test_a_folder_in_the_cache_of_a_hub_is_read(folder, tmp_path):
    """There, every file is a link, and so may be the path that a user gives."""
    expected, blobs = port(folder), tmp_path / "models--a--b" / "blobs"
    snapshot = blobs.parent / "snapshots" / "0123abcd"
    blobs.mkdir(parents=True)
    for number, path in enumerate(path for path in sorted(folder.rglob("*")) if path.is_file()):
        link = snapshot / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, blobs / str(number))
        link.symlink_to(os.path.relpath(blobs / str(number), link.parent))
    (tmp_path / "link").symlink_to(snapshot)
    for number, source in enumerate((snapshot, tmp_path / "link")):
        target = tmp_path / f"out{number}"
        assert port(source, target, target_dialect="sentence-transformers").digest == expected.digest
        assert (target / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
        assert not any(path.is_symlink() for path in target.rglob("*"))


@pytest.mark.parametrize("place", ["elsewhere", "missing", "blobs"])
def test_a_tokenizer_outside_the_folder_is_not_copied(place, folder, tmp_path):
    (folder / "words.txt").write_text("words")
    (folder / "vocab.txt").symlink_to("words.txt")
    port(folder, tmp_path / "first", target_dialect="sentence-transformers")  # a link within the folder is followed
    (tmp_path / "blobs").mkdir()  # without snapshots beside it, this is not a cache
    outside = tmp_path / place if place != "blobs" else tmp_path / "blobs" / "vocab.txt"
    if place != "missing":
        outside.write_text("secret")
    (folder / "vocab.txt").unlink()
    (folder / "vocab.txt").symlink_to(outside)
    with pytest.raises(PortingError, match=r"vocab\.txt leads to .*; expected a file in .* or in a Hugging Face cache"):
        port(folder, tmp_path / "out", target_dialect="sentence-transformers")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("content", "message"), [("{}", "it is not a JSON list"), ("[", "Expecting value")])
def test_a_damaged_list_of_modules_is_refused(content, message, folder):
    (folder / "modules.json").write_text(content)
    with pytest.raises(PortingError, match=rf"modules\.json: {message}"):
        port(folder)


def test_tensors_of_a_dense_layer_are_strict(folder):
    path = folder / "2_Dense" / "model.safetensors"
    tensors = load_file(path)
    save_file({"linear.weight": tensors["linear.weight"]}, path)
    with pytest.raises(PortingError, match=r"model\.safetensors: missing linear\.bias; restore the file"):
        port(folder)


def test_a_missing_module_is_named(save_sentence_model, tmp_path):
    _, folder = save_sentence_model(next(iter(SENTENCE_MODELS)))
    shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "1_Pooling")
    with pytest.raises(PortingError, match=r"1_Pooling is missing, but modules\.json lists it"):
        port(tmp_path / "copy")
