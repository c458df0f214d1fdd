"""A configuration survives JSON and cannot be changed. Unknown and missing fields are refused by name."""

import dataclasses
import json
from dataclasses import replace

import pytest
from config_fields import DECODER_HEADS, DROPOUTS, SIZES
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_configs import BERT, EMBEDDED

from triglot.shared.errors import ConfigError
from triglot.shared.model.config import DenseLayer, ModelConfig
from triglot.shared.model.positions import TABLES
from triglot.shared.model.recipes import recipes


@st.composite
def configs(draw):
    """Generate any valid configuration."""

    def process(letters):
        return draw(st.lists(st.sampled_from(letters), unique=True).map("".join))

    count, rate = st.integers(0, 10**6), st.floats(0, 1, exclude_max=True)
    vocabulary = draw(count)
    positions = draw(st.sampled_from([*TABLES, "learned", "none"])) if vocabulary else "none"
    masking = draw(st.sampled_from(["exclude", "fill", "add"]))
    known = ["pooler", "sequence_classifier", "token_classifier", "replaced_token", "sentence_embedding"]
    known[1:1] = ["masked_lm", "next_sentence"] if vocabulary else []
    drawn = draw(st.sets(st.sampled_from(known)))
    on_pooler = ("next_sentence", "sequence_classifier")
    heads = tuple(head for head in known if head in drawn and (head not in on_pooler or "pooler" in drawn))
    segments, tasks = (draw(count) if vocabulary else 0 for _ in range(2))
    pre_process, final_process, decoder = process("nd"), process("nd"), {}
    if draw(st.booleans()):
        heads, segments, tasks = (draw(st.sampled_from(DECODER_HEADS)),) if vocabulary else (), 0, 0
        ids = st.none() | st.integers(0, vocabulary - 1) if vocabulary else st.none()
        decoder = {
            "kind": "encoder_decoder",
            "decoder_layers": draw(st.integers(1, 10**6)),
            "target_vocabulary": vocabulary,
            "target_max_length": draw(st.integers(1, 10**6)),
            "normalize_memory": "n" in pre_process and draw(st.booleans()),
            "start_id": draw(ids),
            "end_id": draw(ids),
        }
    sizes = {name: draw(st.integers(1, 10**6)) for name in SIZES}
    is_pair, classifies = bool(decoder), {"sequence_classifier", "token_classifier"} & set(heads)
    sentence = {}
    if "sentence_embedding" in heads:
        layers = st.builds(
            DenseLayer,
            size=st.integers(1, 10**6),
            bias=st.booleans(),
            activation=st.sampled_from(["none", "tanh", "relu", "gelu", "gelu_tanh"]),
        )
        sentence["sentence_pooling"] = draw(st.sampled_from(["mean", "cls", "max"]))
        sentence["sentence_layers"] = draw(st.lists(layers, max_size=3).map(tuple))
        sentence["sentence_normalized"] = draw(st.booleans())
    projected = bool(vocabulary) and not is_pair and draw(st.booleans())
    return ModelConfig(
        **decoder,
        **sizes,
        **sentence,
        positions_skip_padding=positions != "none" and not is_pair and draw(st.booleans()),
        embedding_size=sizes["hidden_size"] + 1 if projected else 0,
        pooler_activation=draw(st.sampled_from(["tanh", "relu", "gelu", "gelu_tanh"])) if "pooler" in heads else "tanh",
        classes=draw(st.integers(1, 10**6)) if classifies else 0,
        **{name: draw(rate) for name in DROPOUTS},
        source_vocabulary=vocabulary,
        segments=segments,
        tasks=tasks,
        positions=positions,
        position_offset=draw(count) if positions == "learned" else 0,
        pad_id=draw(st.none() | st.integers(0, vocabulary - 1)) if vocabulary else None,
        embedding_process=process("nd") if vocabulary else "",
        embedding_scale=draw(st.booleans()),
        pre_process=pre_process,
        post_process=process("and"),
        final_process=final_process,
        norm_eps=draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        activation=draw(st.sampled_from(["relu", "gelu", "gelu_tanh"])),
        projection_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        feed_forward_bias=draw(st.booleans()),
        norm_bias=draw(st.booleans()),
        final_norm_bias="n" not in final_process or draw(st.booleans()),
        masking=masking,
        masking_value=None
        if masking == "exclude"
        else draw(st.floats(max_value=0, exclude_max=True, allow_infinity=False)),
        heads_on_top=heads,  # pyright: ignore[reportArgumentType]
        tied_embeddings="masked_lm" in heads and draw(st.booleans()),
        initializer=draw(st.sampled_from(["bert", "translation", "prenorm", "annotated", "multihead"])),
    )


def assert_json_brings_back(config):
    fields = config.to_dict()
    text = json.dumps(fields, allow_nan=False)
    assert json.loads(text) == fields, "a value is of no JSON type"
    back = ModelConfig.from_dict(json.loads(text))
    assert back == config
    assert repr(back) == repr(config), "a value came back equal, but of another type"


@pytest.mark.parametrize("config", recipes().values(), ids=recipes())
def test_every_recipe_survives_json(config):
    assert_json_brings_back(config)


@given(configs())
@settings(deadline=None, max_examples=100)
def test_any_configuration_survives_json(config):
    assert_json_brings_back(config)


def test_to_dict_shows_every_field_in_order():
    assert list(BERT.to_dict()) == [field.name for field in dataclasses.fields(ModelConfig)]


def test_from_dict_changes_nothing_in_what_it_reads():
    fields = BERT.to_dict()
    ModelConfig.from_dict(fields)
    assert fields == BERT.to_dict()


def test_fields_that_change_a_result_have_no_default():
    required = {field.name for field in dataclasses.fields(ModelConfig) if field.default is dataclasses.MISSING}
    assert required >= {"norm_eps", "activation", "masking", "positions", "pre_process", "post_process"}


def test_fields_that_a_model_may_do_without_have_these_defaults():
    fields = dataclasses.fields(ModelConfig)
    assert {field.name: field.default for field in fields if field.default is not dataclasses.MISSING} == {
        "kind": "encoder",
        "decoder_layers": 0,
        "target_vocabulary": 0,
        "target_max_length": 0,
        "segments": 0,
        "tasks": 0,
        "position_offset": 0,
        "positions_skip_padding": False,
        "embedding_size": 0,
        "embedding_scale": False,
        "shared_embeddings": False,
        "normalize_memory": False,
        "pad_id": None,
        "start_id": None,
        "end_id": None,
        "embedding_process": "",
        "norm": "layer_norm",
        "attention_output_activation": "none",
        "projection_bias": True,
        "output_bias": True,
        "feed_forward_bias": True,
        "norm_bias": True,
        "final_norm_bias": True,
        "masking_value": None,
        "embedding_dropout": 0.0,
        "residual_dropout": 0.0,
        "attention_dropout": 0.0,
        "attention_output_dropout": 0.0,
        "feed_forward_dropout": 0.0,
        "feed_forward_output_dropout": 0.0,
        "heads_on_top": (),
        "pooler_activation": "tanh",
        "classes": 0,
        "tied_embeddings": False,
        "sentence_pooling": "none",
        "sentence_layers": (),
        "sentence_normalized": False,
        "initializer": "bert",
    }


def test_unknown_fields_are_refused_by_name():
    with pytest.raises(
        ConfigError, match=r"unknown field dropout, layer; did you mean 'residual_dropout'.*expected kind, hidden_size,"
    ):
        ModelConfig.from_dict({**BERT.to_dict(), "layer": 2, "dropout": 0.1})


def test_missing_fields_are_refused_by_name():
    fields = BERT.to_dict()
    del fields["norm_eps"], fields["activation"]
    with pytest.raises(ConfigError, match=r"missing field activation, norm_eps; give each a value"):
        ModelConfig.from_dict(fields)


def test_fields_with_a_default_may_be_missing():
    fields = EMBEDDED.to_dict()
    for field in dataclasses.fields(ModelConfig):
        if field.default is not dataclasses.MISSING and fields[field.name] == field.default:
            del fields[field.name]
    assert "segments" not in fields
    assert ModelConfig.from_dict(fields) == EMBEDDED


def test_a_configuration_cannot_be_changed():
    for name in ("layers", "norm_eps"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(BERT, name, 1)


def test_equal_configurations_have_equal_hashes():
    assert {BERT: "found"}[ModelConfig.from_dict(BERT.to_dict())] == "found"
    assert replace(BERT, norm_eps=1e-5) != BERT
