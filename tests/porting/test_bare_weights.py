"""Weights without a configuration, and configurations that are corrected: by a recipe, a file or single fields."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from triglot import models, port
from triglot.commands import fields
from triglot.shared import checkpoint
from triglot.shared.errors import CheckpointError, ConfigError, PortingError
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe, recipes

BERT = recipe("bert-base-tiny")
PRETRAINING = ("pooler", "masked_lm", "next_sentence")
# What a bare file cannot say, and how the tiny BERT says it.
UNSAID = {"heads": 3, "activation": "gelu", "norm_eps": 1e-12, "masking": "exclude"}
# What has a default where nothing says otherwise.
DEFAULTS = {"pad_id": None, "embedding_dropout": 0.0, "residual_dropout": 0.0, "attention_dropout": 0.0}


@pytest.fixture
def make_bare(make_checkpoint, tmp_path):
    """A bare .safetensors file with the weights of a configuration, and the digest of the whole model."""

    def make(config=BERT, change=lambda tensors: tensors):
        original = make_checkpoint(config)
        port(original, tmp_path / "model", target_dialect="huggingface")
        path = tmp_path / "bare.safetensors"
        save_file(change(load_file(tmp_path / "model" / "model.safetensors")), path)
        return path, original.digest

    return make


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"heads_on_top": ()},
        {"heads_on_top": PRETRAINING},
        {"heads_on_top": PRETRAINING, "tied_embeddings": True},
        {"heads_on_top": ("masked_lm",), "tied_embeddings": True, "layers": 3, "feed_forward_size": 29},
        {"segments": 4, "tasks": 16, "source_vocabulary": 53, "source_max_length": 19},
    ],
)
def test_sizes_and_heads_are_those_of_the_tensors(changes, make_bare):
    config = replace(BERT, **changes)
    path, digest = make_bare(config)
    assert port(path, config=UNSAID).config == replace(config, **DEFAULTS)
    assert port(path, config={**UNSAID, **{name: config.to_dict()[name] for name in DEFAULTS}}).digest == digest
    assert port(path, config=config).digest == digest
    assert port(path, config=config.to_dict()).digest == digest
    assert port(path, config=config, source_dialect="huggingface").digest == digest


def test_a_recipe_says_what_the_weights_do_not(make_bare):
    path, digest = make_bare()
    assert port(path, config="bert-base-tiny").digest == digest


@pytest.mark.parametrize("prefix", ["bert.", "ernie."])
def test_a_prefix_is_understood(prefix, make_bare):
    path, digest = make_bare(change=lambda tensors: {f"{prefix}{name}": array for name, array in tensors.items()})
    assert port(path, config="bert-base-tiny").digest == digest


@pytest.mark.parametrize("given", [None, {}, {"heads": 3}, {"layers": 2, "masking": "exclude", "norm_eps": 1e-12}])
def test_what_a_bare_file_does_not_say_has_to_be_given(given, make_bare):
    path, _ = make_bare()
    missing = [name for name in ("heads", "activation", "norm_eps", "masking") if name not in (given or {})]
    message = (
        f"cannot port {path}: a bare state dict does not say {', '.join(missing)}; give them as config (--set "
        f"{missing[0]}=... on the command line), or a recipe; for the state dict of an article, name its dialect "
        "(--source-dialect)"
    )
    with pytest.raises(PortingError, match=f"^{re.escape(message)}$"):
        port(path, config=given)


@pytest.mark.parametrize("heads", [0, -3, 5, 25, True, "3", 3.0, None])
def test_a_number_of_heads_that_cannot_be_is_refused(heads, make_bare):
    path, _ = make_bare()
    message = f"cannot port {path}: heads is {heads!r}; expected a divisor of the hidden size 24, correct it"
    with pytest.raises(PortingError, match=f"^{re.escape(message)}$"):
        port(path, config={**UNSAID, "heads": heads})


def test_another_number_of_heads_fits_the_same_tensors(make_bare):
    """Nothing in a file says how many heads share a matrix: whoever gives the number has to know it."""
    config = port(make_bare()[0], config={**UNSAID, "heads": 4}).config
    assert (config.heads, config.key_size, config.value_size) == (4, 6, 6)


@pytest.mark.parametrize(
    "name",
    [
        "embeddings.word_embeddings.weight",
        "embeddings.position_embeddings.weight",
        "embeddings.token_type_embeddings.weight",
        "encoder.layer.0.intermediate.dense.weight",
    ],
)
def test_a_tensor_that_says_a_size_cannot_be_missing(name, make_bare):
    path, _ = make_bare(change=lambda tensors: {k: v for k, v in tensors.items() if k != name})
    message = f"cannot port {path}: {name} is missing; expected the weights of a BERT or ERNIE"
    with pytest.raises(PortingError, match=f"^{re.escape(message)}$"):
        port(path, config=UNSAID)


@pytest.mark.parametrize("given", [UNSAID, "bert-base-tiny"], ids=["fields", "recipe"])
def test_any_other_tensor_cannot_be_missing_either(given, make_bare):
    gone = "encoder.layer.1.output.dense.bias"
    path, _ = make_bare(change=lambda tensors: {k: v for k, v in tensors.items() if k != gone})
    message = (
        f"cannot port {path}: missing {gone}; expected the encoder of a BERT or ERNIE, its pooler and the heads of its "
        "pre-training, no more; save the model without other heads, or correct the configuration"
    )
    with pytest.raises(PortingError, match=f"^{re.escape(message)}$"):
        port(path, config=given)


def test_a_file_of_another_model_is_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    save_file({"wte.weight": np.zeros((3, 4), np.float32)}, path)
    message = (
        f"cannot port {path}: embeddings.word_embeddings.weight is missing; expected the weights of a BERT or ERNIE"
    )
    with pytest.raises(PortingError, match=f"^{re.escape(message)}$"):
        port(path, config=UNSAID)
    message = f"cannot port {path}: 1 tensors cannot be 2 layers; the configuration belongs to another model"
    with pytest.raises(PortingError, match=f"^{re.escape(message)}$"):
        port(path, config="bert-base-tiny")


def test_a_layer_with_a_number_beyond_the_others_is_not_believed(make_bare):
    """Were it, a name of a few bytes could make up a million layers."""
    extra = {"encoder.layer.999999.output.dense.bias": np.zeros(24, np.float32)}
    path, _ = make_bare(change=lambda tensors: {**tensors, **extra})
    message = f"cannot port {path}: 40 tensors cannot be 1000000 layers; the configuration belongs to another model"
    with pytest.raises(PortingError, match=f"^{re.escape(message)}$"):
        port(path, config=UNSAID)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({**UNSAID, "activation": "silu"}, "activation is 'silu'; expected one of relu, gelu, gelu_tanh"),
        ({**UNSAID, "masking": "add"}, "masking_value is None; expected a finite negative number, to add"),
        ({**UNSAID, "layer": 2}, "unknown field layer; known are kind, hidden_size,"),
    ],
)
def test_a_field_that_is_wrong_is_refused(given, problem, make_bare):
    path, _ = make_bare()
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot port {path}: configuration: {problem}')}"):
        port(path, config=given)


def test_an_unknown_recipe_is_refused(make_bare):
    path, _ = make_bare()
    message = f"cannot port {path}: unknown recipe 'bert'; the recipes are {', '.join(recipes())}"
    with pytest.raises(PortingError, match=f"^{re.escape(message)}$"):
        port(path, config="bert")


def test_a_head_that_is_left_out_of_the_configuration_is_named(make_bare):
    path, _ = make_bare(replace(BERT, heads_on_top=PRETRAINING, tied_embeddings=True))
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot port {path}: no place for ')}") as error:
        port(path, config=replace(BERT, heads_on_top=("masked_lm",), tied_embeddings=True))
    problems = re.findall(r"no place for (\S+) \(add (\w+) to heads_on_top\)", str(error.value))
    assert sorted(problems) == [
        ("bert.pooler.dense.bias", "pooler"),
        ("bert.pooler.dense.weight", "pooler"),
        ("cls.seq_relationship.bias", "next_sentence"),
        ("cls.seq_relationship.weight", "next_sentence"),
    ]


def test_a_tie_that_the_file_does_not_show_can_be_said(make_bare):
    """A file that holds the table twice looks untied; both readings compute the same."""
    tied = replace(BERT, heads_on_top=PRETRAINING, tied_embeddings=True)

    def write_twice(tensors):
        table = tensors["bert.embeddings.word_embeddings.weight"]
        return {**tensors, "cls.predictions.decoder.weight": table}

    path, digest = make_bare(tied, write_twice)
    assert not port(path, config=UNSAID).config.tied_embeddings
    assert port(path, config=tied).digest == digest
    assert port(path, config={**UNSAID, "tied_embeddings": True}).config == replace(tied, **DEFAULTS)


def test_fields_of_a_folder_are_corrected(make_bare):
    path, _ = make_bare()
    folder = path.parent / "model"
    assert port(folder, config={"norm_eps": 1e-5}).config == replace(BERT, norm_eps=1e-5)
    assert port(folder, config=replace(BERT, activation="relu")).config == replace(BERT, activation="relu")
    with pytest.raises(PortingError, match=r"^cannot port .*: missing encoder\.layer\.2\.attention\.self\.query\.wei"):
        port(folder, config={"layers": 3})


def test_fields_of_a_neutral_file_are_corrected(make_checkpoint, tmp_path):
    original, path = make_checkpoint(BERT), tmp_path / "model.npz"
    checkpoint.save(original, path)
    corrected = port(path, tmp_path / "corrected.npz", config={"norm_eps": 1e-5, "pad_id": None})
    expected = replace(BERT, norm_eps=1e-5, pad_id=None)
    loaded = checkpoint.load(tmp_path / "corrected.npz", "full")
    assert corrected.config == loaded.config == expected
    assert corrected.digest == loaded.digest == checkpoint.Checkpoint(expected, original.tensors).digest
    assert port(path, config={}).digest == original.digest
    assert port(original, config={"norm_eps": 1e-5}).config == replace(BERT, norm_eps=1e-5)
    with pytest.raises(
        CheckpointError, match=r"^the tensors do not match the configuration: unexpected heads\.pooler\."
    ):
        port(path, config={"heads_on_top": []})
    with pytest.raises(ConfigError, match=r"^configuration: layers is 0; expected a size of at least 1$"):
        port(path, config={"layers": 0})


def test_a_recipe_is_drawn_under_its_corrected_configuration():
    found = models.resolve("bert-base-tiny", 3, {"layers": 1, "heads_on_top": ["pooler", "masked_lm"]}).checkpoint
    expected = replace(BERT, layers=1, heads_on_top=("pooler", "masked_lm"))
    assert found.config == expected
    for name, tensor in initialize(expected, 3).items():
        np.testing.assert_array_equal(found.tensors[name], tensor, err_msg=name)


def test_a_trained_recipe_keeps_its_weights_under_a_corrected_configuration():
    plain, corrected = (models.resolve("minilm", config=config).checkpoint for config in (None, {"norm_eps": 1e-5}))
    assert corrected.config == replace(recipe("minilm"), norm_eps=1e-5)
    name = "encoder.layers.5.feed_forward.output.weight"
    np.testing.assert_array_equal(corrected.tensors[name], plain.tensors[name])


@pytest.mark.parametrize("name", ["minilm", "bert-base-tiny"])
def test_a_recipe_is_in_no_dialect(name):
    message = f"^{name} is a recipe, which is in no dialect; leave the dialect out, or give a path$"
    with pytest.raises(PortingError, match=message):
        models.resolve(name, dialect="huggingface")


def test_without_options_there_is_nothing_to_correct():
    assert fields.configuration(None, None) is None
    assert fields.configuration(None, []) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("layers=1", 1),
        ("layers=-1", -1),
        ("norm_eps=1e-5", 1e-5),
        ("norm_eps=0.5", 0.5),
        ("pad_id=null", None),
        ("tied_embeddings=true", True),
        ("tied_embeddings=false", False),
        ("activation=gelu_tanh", "gelu_tanh"),
        ('activation="gelu_tanh"', "gelu_tanh"),
        ('heads_on_top=["pooler","masked_lm"]', ["pooler", "masked_lm"]),
        ("heads_on_top=[]", []),
        ("pre_process=a=b", "a=b"),
        ("pre_process=[" + "[" * 100_000, "[" * 100_001),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_value_is_what_json_says_or_a_word(text, value):
    found = fields.configuration(None, [text])
    assert found is not None
    assert found == {text.split("=")[0]: value}
    assert type(found[text.split("=")[0]]) is type(value)


def test_an_empty_word_is_written_in_quotes():
    assert fields.configuration(None, ['pre_process=""']) == {"pre_process": ""}


@pytest.mark.parametrize("text", ["layers", "layers=", "=1", "=", ""])
def test_a_field_without_name_or_value_is_refused(text):
    message = f"--set is {text!r}; expected NAME=VALUE"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        fields.configuration(None, [text])
    message = message.replace("--set", "--python")
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        fields.name_value_pairs("--python", [text])


def test_a_field_is_given_once():
    with pytest.raises(ConfigError, match=r"^--set layers is given twice; give it once$"):
        fields.configuration(None, ["layers=1", "heads=3", "layers=1"])


def test_a_recipe_a_file_or_what_inspect_wrote_is_a_configuration(tmp_path, monkeypatch):
    assert fields.configuration("bert-base-tiny", None) == BERT.to_dict()
    assert fields.configuration("bert-base-tiny", ["layers=1"]) == {**BERT.to_dict(), "layers": 1}
    path = tmp_path / "fields.json"
    path.write_text(json.dumps(UNSAID))
    assert fields.configuration(str(path), ["heads=4"]) == {**UNSAID, "heads": 4}
    path.write_text(json.dumps({"config": UNSAID, "digest": "..."}))
    assert fields.configuration(str(path), None) == UNSAID
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert-base").write_text("{}")
    assert fields.configuration("bert-base", None) == recipe("bert-base").to_dict()
    assert fields.configuration("./bert-base", None) == {}


GIVE = f"; pass a JSON file with fields of a configuration, or one of the recipes {', '.join(recipes())}"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory" + GIVE),
        (b"", "it is not JSON (Expecting value: line 1 column 1 (char 0))" + GIVE),
        (b"heads: 3", "it is not JSON (Expecting value: line 1 column 1 (char 0))" + GIVE),
        (
            b"\xff",
            "it is not JSON ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte)" + GIVE,
        ),
        (b"[]", "it holds no JSON object; pass one with fields of a configuration"),
        (b'{"config": 3}', "it holds no JSON object; pass one with fields of a configuration"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(content, reason, tmp_path):
    path = tmp_path / "fields.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^{re.escape(f'cannot read {path}: {reason}')}$"):
        fields.configuration(str(path), None)


def test_a_folder_is_no_configuration(tmp_path):
    with pytest.raises(ConfigError, match=f"^{re.escape(f'cannot read {tmp_path}: Is a directory{GIVE}')}$"):
        fields.configuration(str(tmp_path), None)
