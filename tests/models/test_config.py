"""The configuration: what it accepts and what it refuses, and the recipes."""

import dataclasses
import itertools
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triglot.shared.errors import ConfigError
from triglot.shared.model.config import DenseLayer, ModelConfig
from triglot.shared.model.positions import TABLES
from triglot.shared.model.recipes import recipe, recipes

BERT = recipe("bert-base-tiny")
TRANSLATION = recipe("translation-tiny")
EMBEDDED = recipe("dygraph-tiny")  # no vocabulary: the inputs are vectors
VECTORS = replace(EMBEDDED, kind="encoder_decoder", decoder_layers=2, target_max_length=23)

DECODER_SIZES = ("decoder_layers", "target_vocabulary", "target_max_length")
SIZES = ("hidden_size", "layers", "heads", "key_size", "value_size", "feed_forward_size", "source_max_length")
COUNTS = ("source_vocabulary", "segments", "tasks", "position_offset", "embedding_size", "classes", *DECODER_SIZES)
DROPOUTS = (
    *("embedding_dropout", "residual_dropout", "attention_dropout", "attention_output_dropout"),
    *("feed_forward_dropout", "feed_forward_output_dropout"),
)
PROCESSES = ("embedding_process", "pre_process", "post_process", "final_process")
CHOICES = {
    "kind": "encoder, encoder_decoder, attention",
    "positions": "none, learned, sinusoidal, sinusoidal_per_dimension",
    "norm": "layer_norm, scalar_layer_norm",
    "attention_output_activation": "none, relu",
    "activation": "relu, gelu, gelu_tanh",
    "masking": "exclude, fill, add",
    "pooler_activation": "tanh, relu, gelu, gelu_tanh",
    "sentence_pooling": "none, mean, cls, max",
    "initializer": "bert, translation, prenorm, annotated, multihead",
}
HEADS = (
    "a tuple (a list in JSON) of logits, log_probabilities, pooler, masked_lm, next_sentence, sequence_classifier, "
    "token_classifier, replaced_token, sentence_embedding, in this order, none twice"
)
DECODER_HEADS = ("logits", "log_probabilities")


def types():
    """Return for each field values of a wrong type, and what the refusal says is expected."""
    for name in SIZES + COUNTS:
        yield name, (2.0, "2", None, True, [2]), "a value of type int"
    for name in ("pad_id", "start_id", "end_id"):
        yield name, (2.0, "2", False), "a value of type int or null"
    for name in PROCESSES:
        yield name, (None, 1, b"n", ["n"]), "a value of type str"
    flags = ("projection_bias", "output_bias", "tied_embeddings", "embedding_scale", "shared_embeddings")
    biases = ("feed_forward_bias", "norm_bias", "final_norm_bias")
    for name in (*flags, *biases, "normalize_memory", "positions_skip_padding", "sentence_normalized"):
        yield name, (None, 1, 0.0, "true"), "a value of type bool"
    for name in ("norm_eps", *DROPOUTS):
        yield name, (None, "0.1", False, [0.1]), "a value of type float or int"
    yield "sentence_layers", (None, 1, "tanh", (1,), {}), "a tuple of DenseLayer (in JSON a list of objects: size, bias"
    yield "masking_value", ("-1", True, [-1.0]), "a value of type float or null or int"


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


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values, _ in types() for value in values])
def test_a_wrong_type_is_refused(name, value):
    (expected,) = (words for field, _, words in types() if field == name)
    with pytest.raises(ConfigError, match=re.escape(f"{name} is {value!r}; expected {expected}")):
        ModelConfig.from_dict({**BERT.to_dict(), name: value})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"classes": 2}, "classes is 2; expected 0: there is no classifier"),
        ({"heads_on_top": ("token_classifier",)}, "classes is 0; expected 1 or more, the number of classes"),
        (
            {"heads_on_top": (), "pooler_activation": "relu"},
            "pooler_activation is 'relu'; expected 'tanh': there is no pooler",
        ),
        (
            {"embedding_size": 1, "norm": "scalar_layer_norm"},
            "embedding_size is 1; expected at least 2: the scalar norm divides by embedding_size - 1",
        ),
        ({"sentence_pooling": "mean"}, "sentence_pooling is 'mean'; expected 'none': there is no sentence_embedding"),
        ({"heads_on_top": ("sentence_embedding",)}, "sentence_pooling is 'none'; expected mean, cls or max"),
        ({"sentence_normalized": True}, "sentence_normalized is True; expected False: there is no sentence_embedding"),
        ({"embedding_size": 24}, "embedding_size is 24; expected 0: embeddings of the hidden size are not projected"),
        (
            {"positions": "none", "positions_skip_padding": True},
            "positions_skip_padding is True; expected False: there",
        ),
    ],
)
def test_fields_of_a_task_model_that_contradict_each_other_are_refused(fields, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        replace(BERT, **fields)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"size": 0}, "size in sentence_layers is 0; expected a whole number of at least 1"),
        ({"size": True}, "size in sentence_layers is True; expected a whole number of at least 1"),
        ({"bias": 1}, "bias in sentence_layers is 1; expected a value of type bool"),
        ({"activation": "silu"}, "activation in sentence_layers is 'silu'; expected one of none, tanh, relu, gelu"),
        ({"dropout": 0.1}, "sentence_layers is ({'size': 3"),
    ],
)
def test_a_wrong_dense_layer_is_refused(layer, message):
    pooled = {"heads_on_top": ["sentence_embedding"], "sentence_pooling": "mean"}
    layers = [{"size": 3, "bias": True, "activation": "tanh", **layer}]
    with pytest.raises(ConfigError, match=re.escape(message)):
        ModelConfig.from_dict({**BERT.to_dict(), **pooled, "sentence_layers": layers})


@pytest.mark.parametrize("fields", [{"positions_skip_padding": True}, {"embedding_size": 16}])
def test_a_pair_supports_neither_skipped_padding_nor_a_projection(fields):
    with pytest.raises(ConfigError, match=r"expected .*: kind encoder_decoder does not support it"):
        replace(TRANSLATION, **fields)


def test_every_field_has_its_refusals_here():
    checked = {name for name, _, _ in types()} | set(CHOICES) | {"heads_on_top"}
    assert checked == {field.name for field in dataclasses.fields(ModelConfig)}


@pytest.mark.parametrize("value", ["", "Encoder", "relu ", None, 1, True, []])
@pytest.mark.parametrize("name", CHOICES)
def test_an_unknown_choice_is_refused(name, value):
    message = f"{name} is {value!r}; expected one of {CHOICES[name]}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        ModelConfig.from_dict({**BERT.to_dict(), name: value})


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", SIZES)
def test_a_size_below_1_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value}; expected a size of at least 1"):
        replace(BERT, **{name: value})


@pytest.mark.parametrize("name", COUNTS)
def test_a_negative_count_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name} is -1; expected 0 or more"):
        replace(BERT, **{name: -1})


def test_key_and_value_sizes_are_free():
    config = replace(BERT, hidden_size=7, heads=3, key_size=5, value_size=2)
    assert (config.key_size, config.value_size) == (5, 2)


@pytest.mark.parametrize("commands", ["nn", "ndn", "ddd", "x", "N", "n d", "n,d"])
@pytest.mark.parametrize("name", PROCESSES)
def test_process_commands_are_known_and_only_d_occurs_twice(name, commands):
    with pytest.raises(ConfigError, match=f"{name} is '{commands}'; expected each at most once"):
        replace(BERT, **{name: commands})


@pytest.mark.parametrize("name", PROCESSES)
def test_dropout_may_come_twice(name):
    """Article 002 applies dropout after the positions, and again to the sum."""
    assert getattr(replace(BERT, **{name: "dnd"}), name) == "dnd"


@pytest.mark.parametrize("commands", ["a", "na", "dan"])
@pytest.mark.parametrize("name", ["embedding_process", "pre_process", "final_process"])
def test_a_residual_can_be_added_only_after_a_sublayer(name, commands):
    message = f"{name} is '{commands}'; expected each at most once \\(d twice\\) of 'd' drop out, 'n' normalise"
    with pytest.raises(ConfigError, match=message):
        replace(BERT, **{name: commands})


@pytest.mark.parametrize("name", ["norm_bias", "final_norm_bias"])
def test_a_scalar_norm_has_a_bias(name):
    with pytest.raises(ConfigError, match=f"{name} is False; expected True: the scalar norm always has a bias"):
        replace(recipe("annotated-tiny"), **{name: False})


def test_only_a_final_norm_can_lack_its_bias():
    with pytest.raises(ConfigError, match="final_norm_bias is False; expected True: there is no final norm"):
        replace(BERT, final_norm_bias=False)


@pytest.mark.parametrize("name", ["feed_forward_bias", "norm_bias"])
def test_attention_alone_has_no_layers_that_lack_a_bias(name):
    with pytest.raises(ConfigError, match=f"{name} is False; expected True: kind attention has no layers"):
        replace(recipe("multihead-tiny"), **{name: False})


def test_post_process_takes_every_order_of_its_commands():
    for length in range(4):
        for commands in itertools.permutations("adn", length):
            assert replace(BERT, post_process="".join(commands)).post_process == "".join(commands)
    message = "expected each at most once \\(d twice\\) of 'a' add the residual, 'd' drop out, 'n' normalise"
    with pytest.raises(ConfigError, match=message):
        replace(BERT, post_process="dana")


@pytest.mark.parametrize(
    ("field", "got", "expected"),
    [
        ("segments", 2, "0"),
        ("tasks", 16, "0"),
        ("positions", "learned", "'none'"),
        ("positions", "sinusoidal", "'none'"),
        ("embedding_process", "n", "''"),
    ],
)
def test_without_a_vocabulary_nothing_is_embedded(field, got, expected):
    message = f"{field} is {got!r}; expected {expected}: with source_vocabulary 0 nothing is embedded"
    with pytest.raises(ConfigError, match=message):
        replace(EMBEDDED, **{field: got})


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "sinusoidal_per_dimension"])
def test_only_a_learned_table_has_unused_rows(positions):
    message = "position_offset is 2; expected 0: only a learned table has unused rows"
    with pytest.raises(ConfigError, match=message):
        replace(BERT, positions=positions, position_offset=2)
    assert replace(BERT, positions="learned", position_offset=2).position_offset == 2


@pytest.mark.parametrize("pad_id", [-1, 101])
def test_pad_id_is_in_the_vocabulary(pad_id):
    message = f"pad_id is {pad_id}; expected null, or an id below source_vocabulary 101"
    with pytest.raises(ConfigError, match=message):
        replace(BERT, pad_id=pad_id)
    assert replace(BERT, pad_id=100).pad_id == 100
    assert replace(BERT, pad_id=None).pad_id is None


def test_a_model_without_a_vocabulary_has_no_pad_id():
    with pytest.raises(ConfigError, match=r"pad_id is 0; expected null, or an id below"):
        replace(EMBEDDED, pad_id=0)


@pytest.mark.parametrize("norm_eps", [0, 0.0, -1e-5, 1, 1.0, float("nan"), float("inf")])
def test_norm_eps_lies_between_0_and_1(norm_eps):
    with pytest.raises(ConfigError, match=f"norm_eps is {norm_eps}; expected a number between 0 and 1"):
        replace(BERT, norm_eps=norm_eps)


@pytest.mark.parametrize("rate", [-0.1, 1, 1.0, 1.5, float("nan")])
@pytest.mark.parametrize("name", DROPOUTS)
def test_a_dropout_rate_is_a_probability_below_1(name, rate):
    message = f"{name} is {rate}; expected a rate from 0 to below 1"
    with pytest.raises(ConfigError, match=re.escape(message)):
        replace(BERT, **{name: rate})


def test_excluding_needs_no_masking_value():
    message = "masking_value is -1000.0; expected null: masking 'exclude' needs no value"
    with pytest.raises(ConfigError, match=message):
        replace(BERT, masking="exclude", masking_value=-1000.0)


@pytest.mark.parametrize("value", [None, 0, 0.0, 1e4, float("nan"), float("inf")])
@pytest.mark.parametrize("masking", ["fill", "add"])
def test_filling_and_adding_need_a_negative_masking_value(masking, value):
    message = f"masking_value is {value}; expected a finite negative number, to {masking}"
    with pytest.raises(ConfigError, match=message):
        replace(BERT, masking=masking, masking_value=value)


@pytest.mark.parametrize("heads", [["scores"], ["pooler", "logits"], ["pooler", "pooler"], "pooler", [["pooler"]], 1])
def test_unknown_and_repeated_heads_are_refused(heads):
    shown = tuple(heads) if isinstance(heads, list) else heads
    message = f"heads_on_top is {shown!r}; expected {HEADS}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        ModelConfig.from_dict({**BERT.to_dict(), "heads_on_top": heads})


def test_heads_have_one_order():
    """Order changes nothing, so another order would be the same model with another digest."""
    message = f"heads_on_top is ('masked_lm', 'pooler'); expected {HEADS}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        replace(BERT, heads_on_top=("masked_lm", "pooler"))
    everything = ("pooler", "masked_lm", "next_sentence")
    assert replace(BERT, heads_on_top=everything).heads_on_top == everything


@pytest.mark.parametrize(
    "heads", [("next_sentence",), ("masked_lm", "next_sentence"), ("sequence_classifier", "token_classifier")]
)
def test_a_head_needs_the_pooler_that_it_reads(heads):
    message = f"heads_on_top is {heads!r}; expected pooler as well"
    with pytest.raises(ConfigError, match=re.escape(message)):
        ModelConfig.from_dict({**BERT.to_dict(), "heads_on_top": list(heads)})


def test_masked_lm_needs_a_vocabulary():
    message = (
        "heads_on_top is ('masked_lm',); expected no masked_lm: with source_vocabulary 0 there are no tokens to predict"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        replace(EMBEDDED, heads_on_top=("masked_lm",))


@pytest.mark.parametrize("heads", [(), ("pooler",), ("pooler", "next_sentence")])
def test_only_masked_lm_can_be_tied(heads):
    message = "tied_embeddings is True; expected false: only the masked_lm head can be tied"
    with pytest.raises(ConfigError, match=re.escape(message)):
        replace(BERT, heads_on_top=heads, tied_embeddings=True)
    assert replace(BERT, heads_on_top=("masked_lm",), tied_embeddings=True).tied_embeddings


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("decoder_layers", 1, "0: kind encoder has no decoder"),
        ("target_vocabulary", 7, "0: kind encoder has no decoder"),
        ("target_max_length", 7, "0: kind encoder has no decoder"),
        ("shared_embeddings", True, "False: kind encoder has no decoder"),
        ("normalize_memory", True, "False: kind encoder has no decoder"),
        ("start_id", 0, "None: kind encoder has no decoder"),
        ("end_id", 1, "None: kind encoder has no decoder"),
        ("heads_on_top", ("logits",), "heads of an encoder, not of a decoder"),
        ("heads_on_top", ("log_probabilities", "pooler"), "heads of an encoder, not of a decoder"),
    ],
)
def test_an_encoder_has_no_fields_of_a_decoder(field, value, expected):
    message = f"{field} is {value!r}; expected {expected}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        replace(BERT, **{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"decoder_layers": 0},
            "decoder_layers is 0; expected at least 1: kind encoder_decoder has a decoder",
        ),
        (
            {"target_vocabulary": 0},
            "target_vocabulary is 0; expected at least 1: with a source_vocabulary, the decoder reads tokens as well",
        ),
        (
            {"target_max_length": 0},
            "target_max_length is 0; expected at least 1: kind encoder_decoder has a decoder",
        ),
        (
            {"source_vocabulary": 0, "positions": "none", "pad_id": None},
            "target_vocabulary is 41; expected 0: with source_vocabulary 0, encoder and decoder read vectors",
        ),
        ({"segments": 2}, "segments is 2; expected 0: kind encoder_decoder does not support it"),
        ({"tasks": 2}, "tasks is 2; expected 0: kind encoder_decoder does not support it"),
        ({"heads_on_top": ()}, "heads_on_top is (); expected one of logits, log_probabilities on a decoder"),
        (
            {"heads_on_top": DECODER_HEADS},
            f"heads_on_top is {DECODER_HEADS}; expected one of logits, log_probabilities on a decoder",
        ),
        (
            {"heads_on_top": ("pooler",)},
            "heads_on_top is ('pooler',); expected one of logits, log_probabilities on a decoder",
        ),
        (
            {"heads_on_top": ("logits", "pooler")},
            "heads_on_top is ('logits', 'pooler'); expected one of logits, log_probabilities on a decoder",
        ),
        (
            {"pre_process": "d"},
            "normalize_memory is True; expected false: it uses the norm of pre_process",
        ),
        (
            {"shared_embeddings": True, "target_vocabulary": 39},
            "target_max_length is 23; expected the source_max_length, because both share",
        ),
        (
            {"shared_embeddings": True, "target_max_length": 19},
            "target_vocabulary is 41; expected the source_vocabulary, because both share",
        ),
        ({"pad_id": 39}, "pad_id is 39; expected null, or an id below source_vocabulary 39"),
        (
            {"target_vocabulary": 2, "end_id": 1},
            "pad_id is 2; expected null, or an id below target_vocabulary 2",
        ),
        ({"start_id": 41}, "start_id is 41; expected null, or an id below target_vocabulary 41"),
        ({"start_id": -1}, "start_id is -1; expected null, or an id below target_vocabulary 41"),
        ({"end_id": 41}, "end_id is 41; expected null, or an id below target_vocabulary 41"),
        (
            {"norm": "scalar_layer_norm", "hidden_size": 1},
            "hidden_size is 1; expected at least 2: the scalar norm divides",
        ),
    ],
)
def test_an_impossible_decoder_is_refused(changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        replace(TRANSLATION, **changes)


@pytest.mark.parametrize(
    "changes", [{"heads_on_top": ("logits",)}, {"shared_embeddings": True}, {"start_id": 0}, {"end_id": 1}]
)
def test_a_pair_that_reads_vectors_has_no_fields_of_tokens(changes):
    ((name, value),) = changes.items()
    message = rf"{name} is {re.escape(repr(value))}; expected .*: with source_vocabulary 0, encoder and decoder read"
    with pytest.raises(ConfigError, match=message):
        replace(VECTORS, **changes)


def test_source_and_target_can_share_a_table():
    shared = replace(TRANSLATION, shared_embeddings=True, target_max_length=19, target_vocabulary=39)
    assert shared.shared_embeddings
    assert replace(TRANSLATION, end_id=40, start_id=None).end_id == 40


def test_a_configuration_cannot_be_changed():
    for name in ("layers", "norm_eps"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(BERT, name, 1)


def test_equal_configurations_have_equal_hashes():
    assert {BERT: "found"}[ModelConfig.from_dict(BERT.to_dict())] == "found"
    assert replace(BERT, norm_eps=1e-5) != BERT


def test_the_recipes_and_their_tiny_siblings():
    names = ["translation", "prenorm", "annotated", "multihead", "dygraph", "bert-base", "ernie-base", "minilm"]
    assert list(recipes()) == names + [f"{name}-tiny" for name in names]


def test_dygraph_is_the_encoder_of_paddle_1_7_at_the_sizes_of_bert_base():
    dygraph, bert = recipe("dygraph").to_dict(), recipe("bert-base").to_dict()
    assert {name: dygraph[name] for name in dygraph if dygraph[name] != bert[name]} == {
        "source_vocabulary": 0,
        "segments": 0,
        "positions": "none",
        "pad_id": None,
        "embedding_process": "",
        "pre_process": "n",
        "post_process": "da",
        "final_process": "n",
        "norm_eps": 1e-5,
        "masking": "add",
        "masking_value": -10000.0,
        "embedding_dropout": 0.0,
        "feed_forward_dropout": 0.1,
        "heads_on_top": [],
    }


def test_ernie_base_and_minilm_differ_from_bert_base_in_these_fields():
    ernie = {"segments": 4, "tasks": 16, "norm_eps": 1e-5, "masking": "add", "masking_value": -10000.0}
    minilm = {"hidden_size": 384, "layers": 6, "key_size": 32, "value_size": 32, "feed_forward_size": 1536}
    assert recipe("ernie-base") == replace(recipe("bert-base"), **ernie)
    assert recipe("minilm") == replace(recipe("bert-base"), **minilm)


@pytest.mark.parametrize("name", [name for name in recipes() if not name.endswith("-tiny")])
def test_a_tiny_sibling_differs_only_in_its_sizes(name):
    full, tiny = recipe(name).to_dict(), recipe(f"{name}-tiny").to_dict()
    assert {field for field in full if full[field] != tiny[field]} <= {*SIZES, *DECODER_SIZES, "source_vocabulary"}
    # If one axis is mistaken for another, the shape has to be wrong.
    sizes = [tiny["hidden_size"], tiny["key_size"], tiny["feed_forward_size"], tiny["heads"], tiny["source_max_length"]]
    assert len(set(sizes)) == len(sizes)


def test_an_unknown_recipe_is_refused_with_the_known_ones():
    with pytest.raises(
        ConfigError,
        match=r"^unknown recipe 'bert'; did you mean 'bert-base'. expected one of translation, prenorm, annotated,",
    ):
        recipe("bert")


def test_recipes_are_returned_as_a_copy():
    recipes()["bert-base"] = EMBEDDED
    del recipes()["minilm"]
    assert recipe("bert-base").source_vocabulary == 30522
    assert "minilm" in recipes()
