"""The configuration in a folder of transformers is translated, or refused with the reason."""

import re
from dataclasses import replace

import pytest
from bert_folders import MODELS, change_config

from triglot import port
from triglot.shared.errors import PortingError
from triglot.shared.model.recipes import recipe
from triglot.shared.porting.dialects import huggingface_config
from triglot.shared.porting.dialects.huggingface_families import BERT


@pytest.mark.parametrize("kind", MODELS)
def test_the_configuration_is_translated(kind, make_transformers_model):
    _, fields, pooler, activation = MODELS[kind]
    _, folder = make_transformers_model(kind)
    expected = replace(
        recipe("bert-base"),
        hidden_size=12,
        layers=2,
        heads=3,
        key_size=4,
        value_size=4,
        feed_forward_size=17,
        source_vocabulary=31,
        source_max_length=9,
        segments=fields.get("type_vocab_size", 2),
        tasks=fields.get("task_type_vocab_size", 0),
        pad_id=fields.get("pad_token_id", 0),
        norm_eps=fields.get("layer_norm_eps", 1e-12),
        activation=activation,
        heads_on_top=("pooler",) if pooler else (),
    )
    assert port(folder).config == expected


TYPES = "bert, ernie, roberta, xlm-roberta, camembert, distilbert, electra"
DIVISOR, RATE = "a divisor of hidden_size 12", "a rate from 0"
SIZE, NUMBER = "a whole number of at least 1", "a value of type"
ACTIVATIONS = "gelu, gelu_new, gelu_pytorch_tanh, relu, gelu_python"
WRONG_FIELDS = [
    *(("model_type", value, f"one of {TYPES}; Triglot does not") for value in ("t5", None, ["bert"])),
    *(
        ("hidden_act", value, "one of gelu, gelu_new, gelu_pytorch_tanh, relu, gelu_python")
        for value in ("silu", None, ["gelu"])
    ),
    ("position_embedding_type", "relative_key", "'absolute'; Triglot does not support"),
    *((name, True, "False; Triglot does not support") for name in ("is_decoder", "add_cross_attention")),
    ("num_attention_heads", 5, DIVISOR),
    *((name, 0, SIZE) for name in ("num_attention_heads", "vocab_size", "type_vocab_size", "num_hidden_layers")),
    ("hidden_size", -12, SIZE),
    *(("hidden_size", 12.0, "a whole number"), ("vocab_size", "31", "a whole number")),
    ("num_hidden_layers", None, "a whole number"),
    ("use_task_id", True, "true for an ERNIE with tasks, or false"),
    *(("use_task_id", 1, "true or false"), ("tie_word_embeddings", 0, "true or false")),
    *(("layer_norm_eps", "0", NUMBER), ("layer_norm_eps", 2, "a number between 0 and 1")),
    ("pad_token_id", 31, "null, or an id below vocab_size 31"),
    *(("hidden_dropout_prob", 1.5, RATE), ("attention_probs_dropout_prob", -0.5, RATE)),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG_FIELDS)
def test_a_wrong_or_unsupported_field_is_refused(name, value, expected, bert_folder):
    change_config(bert_folder, **{name: value})
    problem = f"config.json: {name} is {value!r}; expected {expected}"
    with pytest.raises(PortingError, match=f"^{re.escape(f'cannot port {bert_folder}: {problem}')}.*"):
        port(bert_folder)


@pytest.mark.parametrize(
    "field",
    [
        *("hidden_act", "hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size"),
        *("max_position_embeddings", "type_vocab_size", "layer_norm_eps", "task_type_vocab_size"),
    ],
)
def test_a_missing_field_is_refused(field, make_transformers_model):
    _, folder = make_transformers_model("ernie")
    change_config(folder, **{field: ...})
    with pytest.raises(PortingError, match=rf"config\.json: {field} is missing; add the value"):
        port(folder)


def test_what_a_configuration_lacks_comes_from_the_names_and_from_the_user(make_transformers_model):
    """The files of the first BERT have neither a type nor an epsilon."""
    _, folder = make_transformers_model("ernie")
    expected = port(folder)
    dropouts = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    change_config(folder, **dict.fromkeys(("model_type", "layer_norm_eps", "hidden_act", *dropouts), ...))
    ported = port(folder, config={"norm_eps": expected.config.norm_eps, "activation": "gelu"})
    assert ported.config == replace(expected.config, residual_dropout=0, embedding_dropout=0, attention_dropout=0)
    change_config(folder, use_task_id=False)
    with pytest.raises(PortingError, match="task_type_embeddings"):
        port(folder, config={"norm_eps": 1e-12, "activation": "gelu"})


def test_a_folder_with_code_of_its_own_is_refused(bert_folder):
    change_config(bert_folder, auto_map={"AutoModel": "modeling_own.OwnModel"})
    with pytest.raises(PortingError, match=r"auto_map is .*; expected none; the folder's own code may compute"):
        port(bert_folder)


def test_a_known_type_that_is_not_supported_is_refused_with_what_is_missing(bert_folder):
    change_config(bert_folder, model_type="mpnet")
    problem = r"model_type is 'mpnet'; expected one of .*; Triglot does not support a relative position bias"
    with pytest.raises(PortingError, match=rf"config\.json: {problem}"):
        port(bert_folder)


def test_fields_that_older_files_lack_are_optional(bert_folder):
    plain = port(bert_folder)
    change_config(bert_folder, position_embedding_type=..., is_decoder=..., add_cross_attention=...)
    assert port(bert_folder).config == plain.config
    change_config(bert_folder, position_embedding_type="absolute", is_decoder=False)
    assert port(bert_folder).config == plain.config
    change_config(
        bert_folder, position_embedding_type=None, is_decoder=None, tie_word_embeddings=None, use_task_id=None
    )
    assert port(bert_folder).config == plain.config


def test_one_head_has_the_whole_hidden_size(bert_folder):
    change_config(bert_folder, num_attention_heads=1)
    config = port(bert_folder).config
    assert (config.heads, config.key_size, config.value_size) == (1, 12, 12)


def test_an_ernie_without_use_task_id_has_no_tasks(make_transformers_model):
    _, folder = make_transformers_model("ernie without tasks")
    change_config(folder, use_task_id=...)
    assert port(folder).config.tasks == 0


def test_the_two_dropout_rates_are_not_confused(bert_folder):
    change_config(bert_folder, hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.125)
    config = port(bert_folder).config
    assert (config.embedding_dropout, config.residual_dropout) == (0.25, 0.25)
    assert (config.attention_dropout, config.feed_forward_dropout) == (0.125, 0.0)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"model_type: bert"])
def test_a_config_file_that_is_not_json_is_refused(content, bert_folder):
    (bert_folder / "config.json").write_bytes(content)
    message = f"^cannot read {re.escape(str(bert_folder / 'config.json'))}: .+; restore the file$"
    with pytest.raises(PortingError, match=message):
        port(bert_folder)


@pytest.mark.parametrize("content", [b"[]", b"null", b'"bert"', b"3"])
def test_a_config_file_that_is_not_an_object_is_refused(content, bert_folder):
    (bert_folder / "config.json").write_bytes(content)
    with pytest.raises(PortingError, match=r"^cannot read .*/config\.json: it is not a JSON object"):
        port(bert_folder)


def test_bert_base_is_the_default_of_transformers():
    from transformers import BertConfig

    config = huggingface_config.from_json(BERT, BertConfig().to_dict(), ["pooler"])
    assert config == recipe("bert-base")
