"""Folders that sentence-transformers saved: ported, judged from text to vector, written and loaded again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from noise import assert_within_noise, truth_of
from safetensors.numpy import load_file
from sentence_models import PROMPTS, SENTENCE_MODELS, minilm, replace_text, text_of

from triglot import impls, load, port
from triglot.parity.judge import Subject
from triglot.parity.originals import find_original
from triglot.parity.originals.comparison import judge_original
from triglot.parity.truth import Reference
from triglot.shared.checkpoint import TextSettings
from triglot.shared.errors import CheckpointError, OutputError, PortingError
from triglot.shared.inputs import encoder_batch
from triglot.shared.model.config import DenseLayer

TEXTS = ["A short sentence.", "x", "Rows of other lengths, which the tokenizer pads, show whether padding counts. " * 4]


@pytest.fixture(scope="module", params=[*SENTENCE_MODELS, "MiniLM"])
def model(request, save_sentence_model):
    """The kind of a model, the model of the library, its folder, and the checkpoint."""
    from sentence_transformers import SentenceTransformer

    if request.param == "MiniLM":
        folder = minilm()
        native = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    else:
        native, folder = save_sentence_model(request.param)
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
    pooling, layers, normalized = SENTENCE_MODELS.get(kind, ("mean", (), True))
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


def test_a_checkpoint_file_keeps_everything_but_the_tokenizer(save_sentence_model, tmp_path, command):
    _, folder = save_sentence_model("cls, dense")
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


def test_the_settings_follow_the_head(save_sentence_model, tmp_path):
    _, folder = save_sentence_model("mean")
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


def test_a_tanh_gelu_cannot_be_written(make_checkpoint, tmp_path):
    config = make_checkpoint("bert-base-tiny").config
    layers = (DenseLayer(size=3, bias=True, activation="gelu_tanh"),)
    embeds = {"heads_on_top": ("sentence_embedding",), "sentence_pooling": "mean", "sentence_layers": layers}
    checkpoint = replace_text(make_checkpoint(replace(config, **embeds)), TextSettings(7, {}))
    with pytest.raises(PortingError, match="activation 'gelu_tanh' in sentence_layers"):
        port(checkpoint, tmp_path / "out", target_dialect="sentence-transformers")


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


def test_text_settings_that_the_target_does_not_hold_are_listed(save_sentence_model, command, workplace):
    _, folder = save_sentence_model(next(iter(SENTENCE_MODELS)))
    code, out, _ = command("port", folder, "model.pt", "--target-dialect", "torch", "--json", "-")
    assert code == 0
    assert "does not hold prompts and the maximum length" in json.loads(out)["left_out"]["the text settings"]
