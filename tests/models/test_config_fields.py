"""Each field of a configuration accepts the right values and refuses others."""

import dataclasses
import itertools
import re
from dataclasses import replace

import pytest
from config_fields import DECODER_SIZES, DROPOUTS, SIZES
from tiny_configs import BERT

from triglot.shared.errors import ConfigError
from triglot.shared.model.config import ModelConfig

COUNTS = ("source_vocabulary", "segments", "tasks", "position_offset", "embedding_size", "classes", *DECODER_SIZES)
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


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values, _ in types() for value in values])
def test_a_wrong_type_is_refused(name, value):
    (expected,) = (words for field, _, words in types() if field == name)
    with pytest.raises(ConfigError, match=re.escape(f"{name} is {value!r}; expected {expected}")):
        ModelConfig.from_dict({**BERT.to_dict(), name: value})


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


def test_post_process_takes_every_order_of_its_commands():
    for length in range(4):
        for commands in itertools.permutations("adn", length):
            assert replace(BERT, post_process="".join(commands)).post_process == "".join(commands)
    message = "expected each at most once \\(d twice\\) of 'a' add the residual, 'd' drop out, 'n' normalise"
    with pytest.raises(ConfigError, match=message):
        replace(BERT, post_process="dana")


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
