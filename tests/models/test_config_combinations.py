"""Fields of a configuration that contradict each other are refused."""

import re
from dataclasses import replace

import pytest
from config_fields import DECODER_HEADS
from tiny_configs import BERT, EMBEDDED, TRANSLATION

from triglot.shared.errors import ConfigError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.recipes import recipe

VECTORS = replace(EMBEDDED, kind="encoder_decoder", decoder_layers=2, target_max_length=23)


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


@pytest.mark.parametrize("fields", [{"positions_skip_padding": True}, {"embedding_size": 16}])
def test_a_pair_supports_neither_skipped_padding_nor_a_projection(fields):
    with pytest.raises(ConfigError, match=r"expected .*: kind encoder_decoder does not support it"):
        replace(TRANSLATION, **fields)


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
