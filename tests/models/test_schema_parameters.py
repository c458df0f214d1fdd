"""The parameters of a configuration: their names, shapes, axes and roles, in order."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from one_layer_models import BERT, DYGRAPH, PRETRAINING, TIED, TRANSLATION

from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.recipes import recipe, recipes
from triglot.shared.porting.dialects import huggingface_families

# Everything is unusual: key and value sizes, no attention biases, unused position rows, four norms.
FREE = ModelConfig(
    hidden_size=4,
    layers=1,
    heads=3,
    key_size=2,
    value_size=5,
    feed_forward_size=7,
    source_vocabulary=11,
    source_max_length=9,
    tasks=6,
    positions="learned",
    position_offset=2,
    embedding_process="d",
    pre_process="n",
    post_process="na",
    final_process="dn",
    norm_eps=1e-5,
    activation="relu",
    projection_bias=False,
    output_bias=False,
    masking="exclude",
)

BERT_PARAMETERS = {
    "embeddings.token.weight": ((101, 24), ("vocabulary", "hidden"), "embedding"),
    "embeddings.position.weight": ((37, 24), ("position", "hidden"), "embedding"),
    "embeddings.segment.weight": ((2, 24), ("segment", "hidden"), "embedding"),
    "embeddings.process.norm.scale": ((24,), ("hidden",), "scale"),
    "embeddings.process.norm.bias": ((24,), ("hidden",), "bias"),
    "encoder.layers.0.attention.query.weight": ((24, 24), ("hidden", "heads*key"), "linear_weight"),
    "encoder.layers.0.attention.query.bias": ((24,), ("heads*key",), "bias"),
    "encoder.layers.0.attention.key.weight": ((24, 24), ("hidden", "heads*key"), "linear_weight"),
    "encoder.layers.0.attention.key.bias": ((24,), ("heads*key",), "bias"),
    "encoder.layers.0.attention.value.weight": ((24, 24), ("hidden", "heads*value"), "linear_weight"),
    "encoder.layers.0.attention.value.bias": ((24,), ("heads*value",), "bias"),
    "encoder.layers.0.attention.output.weight": ((24, 24), ("heads*value", "hidden"), "linear_weight"),
    "encoder.layers.0.attention.output.bias": ((24,), ("hidden",), "bias"),
    "encoder.layers.0.post_attention.norm.scale": ((24,), ("hidden",), "scale"),
    "encoder.layers.0.post_attention.norm.bias": ((24,), ("hidden",), "bias"),
    "encoder.layers.0.feed_forward.inner.weight": ((24, 40), ("hidden", "feed_forward"), "linear_weight"),
    "encoder.layers.0.feed_forward.inner.bias": ((40,), ("feed_forward",), "bias"),
    "encoder.layers.0.feed_forward.output.weight": ((40, 24), ("feed_forward", "hidden"), "linear_weight"),
    "encoder.layers.0.feed_forward.output.bias": ((24,), ("hidden",), "bias"),
    "encoder.layers.0.post_feed_forward.norm.scale": ((24,), ("hidden",), "scale"),
    "encoder.layers.0.post_feed_forward.norm.bias": ((24,), ("hidden",), "bias"),
    "heads.pooler.weight": ((24, 24), ("hidden", "hidden"), "linear_weight"),
    "heads.pooler.bias": ((24,), ("hidden",), "bias"),
}
# In addition to those of BERT, after its pooler, in this order.
MASKED_LM_PARAMETERS = {
    "heads.masked_lm.transform.weight": ((24, 24), ("hidden", "hidden"), "linear_weight"),
    "heads.masked_lm.transform.bias": ((24,), ("hidden",), "bias"),
    "heads.masked_lm.norm.scale": ((24,), ("hidden",), "scale"),
    "heads.masked_lm.norm.bias": ((24,), ("hidden",), "bias"),
    "heads.masked_lm.decoder.weight": ((101, 24), ("vocabulary", "hidden"), "embedding"),
    "heads.masked_lm.bias": ((101,), ("vocabulary",), "bias"),
}
NEXT_SENTENCE_PARAMETERS = {
    "heads.next_sentence.weight": ((24, 2), ("hidden", "relation"), "linear_weight"),
    "heads.next_sentence.bias": ((2,), ("relation",), "bias"),
}
TIED_MASKED_LM_PARAMETERS = {
    name: entry for name, entry in MASKED_LM_PARAMETERS.items() if name != "heads.masked_lm.decoder.weight"
}
DYGRAPH_PARAMETERS = {
    "encoder.layers.0.pre_attention.norm.scale": ((24,), ("hidden",), "scale"),
    "encoder.layers.0.pre_attention.norm.bias": ((24,), ("hidden",), "bias"),
    "encoder.layers.0.attention.query.weight": ((24, 24), ("hidden", "heads*key"), "linear_weight"),
    "encoder.layers.0.attention.query.bias": ((24,), ("heads*key",), "bias"),
    "encoder.layers.0.attention.key.weight": ((24, 24), ("hidden", "heads*key"), "linear_weight"),
    "encoder.layers.0.attention.key.bias": ((24,), ("heads*key",), "bias"),
    "encoder.layers.0.attention.value.weight": ((24, 24), ("hidden", "heads*value"), "linear_weight"),
    "encoder.layers.0.attention.value.bias": ((24,), ("heads*value",), "bias"),
    "encoder.layers.0.attention.output.weight": ((24, 24), ("heads*value", "hidden"), "linear_weight"),
    "encoder.layers.0.attention.output.bias": ((24,), ("hidden",), "bias"),
    "encoder.layers.0.pre_feed_forward.norm.scale": ((24,), ("hidden",), "scale"),
    "encoder.layers.0.pre_feed_forward.norm.bias": ((24,), ("hidden",), "bias"),
    "encoder.layers.0.feed_forward.inner.weight": ((24, 40), ("hidden", "feed_forward"), "linear_weight"),
    "encoder.layers.0.feed_forward.inner.bias": ((40,), ("feed_forward",), "bias"),
    "encoder.layers.0.feed_forward.output.weight": ((40, 24), ("feed_forward", "hidden"), "linear_weight"),
    "encoder.layers.0.feed_forward.output.bias": ((24,), ("hidden",), "bias"),
    "encoder.final.norm.scale": ((24,), ("hidden",), "scale"),
    "encoder.final.norm.bias": ((24,), ("hidden",), "bias"),
}
FREE_PARAMETERS = {
    "embeddings.token.weight": ((11, 4), ("vocabulary", "hidden"), "embedding"),
    "embeddings.position.weight": ((11, 4), ("position", "hidden"), "embedding"),
    "embeddings.task.weight": ((6, 4), ("task", "hidden"), "embedding"),
    "encoder.layers.0.pre_attention.norm.scale": ((4,), ("hidden",), "scale"),
    "encoder.layers.0.pre_attention.norm.bias": ((4,), ("hidden",), "bias"),
    "encoder.layers.0.attention.query.weight": ((4, 6), ("hidden", "heads*key"), "linear_weight"),
    "encoder.layers.0.attention.key.weight": ((4, 6), ("hidden", "heads*key"), "linear_weight"),
    "encoder.layers.0.attention.value.weight": ((4, 15), ("hidden", "heads*value"), "linear_weight"),
    "encoder.layers.0.attention.output.weight": ((15, 4), ("heads*value", "hidden"), "linear_weight"),
    "encoder.layers.0.post_attention.norm.scale": ((4,), ("hidden",), "scale"),
    "encoder.layers.0.post_attention.norm.bias": ((4,), ("hidden",), "bias"),
    "encoder.layers.0.pre_feed_forward.norm.scale": ((4,), ("hidden",), "scale"),
    "encoder.layers.0.pre_feed_forward.norm.bias": ((4,), ("hidden",), "bias"),
    "encoder.layers.0.feed_forward.inner.weight": ((4, 7), ("hidden", "feed_forward"), "linear_weight"),
    "encoder.layers.0.feed_forward.inner.bias": ((7,), ("feed_forward",), "bias"),
    "encoder.layers.0.feed_forward.output.weight": ((7, 4), ("feed_forward", "hidden"), "linear_weight"),
    "encoder.layers.0.feed_forward.output.bias": ((4,), ("hidden",), "bias"),
    "encoder.layers.0.post_feed_forward.norm.scale": ((4,), ("hidden",), "scale"),
    "encoder.layers.0.post_feed_forward.norm.bias": ((4,), ("hidden",), "bias"),
    "encoder.final.norm.scale": ((4,), ("hidden",), "scale"),
    "encoder.final.norm.bias": ((4,), ("hidden",), "bias"),
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (BERT, BERT_PARAMETERS),
        (PRETRAINING, BERT_PARAMETERS | MASKED_LM_PARAMETERS | NEXT_SENTENCE_PARAMETERS),
        (TIED, BERT_PARAMETERS | TIED_MASKED_LM_PARAMETERS | NEXT_SENTENCE_PARAMETERS),
        (DYGRAPH, DYGRAPH_PARAMETERS),
        (FREE, FREE_PARAMETERS),
    ],
    ids=["bert", "pre-training", "tied", "dygraph", "free"],
)
def test_parameters_are_those_spelled_out_here_in_this_order(config, expected):
    found = schema.parameters(config)
    assert {name: (entry.shape, entry.axes, entry.role) for name, entry in found.items()} == expected
    assert list(found) == list(expected)
    assert [entry.name for entry in found.values()] == list(expected)


@pytest.mark.parametrize("name", [name for name in recipes() if name.endswith("-tiny") and recipe(name).layers])
def test_a_second_layer_has_the_parameters_of_the_first(name):
    config = recipe(name)
    assert config.layers == 2
    entries = schema.parameters(config)
    first, second = (
        {
            entry.name.replace(f"layers.{layer}.", "layers.N."): (entry.shape, entry.axes, entry.role)
            for entry in entries.values()
            if f"layers.{layer}." in entry.name
        }
        for layer in (0, 1)
    )
    assert first
    assert first == second


ANNOTATED = replace(recipe("annotated-tiny"), layers=1, decoder_layers=1)
ATTENTION_LEAVES = [f"{name}.{leaf}" for name in ("query", "key", "value", "output") for leaf in ("weight", "bias")]
FEED_FORWARD_LEAVES = [f"{name}.{leaf}" for name in ("inner", "output") for leaf in ("weight", "bias")]


def block(path, name, leaves):
    """Return the names of a sublayer that follows a norm."""
    norm = [f"{path}.pre_{name}.norm.scale", f"{path}.pre_{name}.norm.bias"]
    return norm + [f"{path}.{name}.{leaf}" for leaf in leaves]


def test_an_encoder_decoder_has_these_parameters_in_this_order():
    encoder, decoder = "encoder.layers.0", "decoder.layers.0"
    stacks = [
        ["embeddings.token.weight"],
        block(encoder, "attention", ATTENTION_LEAVES) + block(encoder, "feed_forward", FEED_FORWARD_LEAVES),
        ["target_embeddings.token.weight"],
        block(decoder, "self_attention", ATTENTION_LEAVES)
        + block(decoder, "cross_attention", ATTENTION_LEAVES)
        + block(decoder, "feed_forward", FEED_FORWARD_LEAVES),
    ]
    heads = ["heads.logits.weight", "heads.logits.bias"]
    assert list(schema.parameters(TRANSLATION)) == [*itertools.chain(*stacks), *heads]
    stacks[1] += ["encoder.final.norm.scale", "encoder.final.norm.bias"]
    stacks[3] += ["decoder.final.norm.scale", "decoder.final.norm.bias"]
    heads = ["heads.log_probabilities.weight", "heads.log_probabilities.bias"]
    assert list(schema.parameters(ANNOTATED)) == [*itertools.chain(*stacks), *heads]


def test_the_parameters_of_a_decoder_have_these_shapes():
    found = schema.parameters(TRANSLATION)
    for name, expected in {
        "target_embeddings.token.weight": ((41, 24), ("vocabulary", "hidden"), "embedding"),
        "decoder.layers.0.pre_cross_attention.norm.scale": ((24,), ("hidden",), "scale"),
        "decoder.layers.0.cross_attention.value.weight": ((24, 24), ("hidden", "heads*value"), "linear_weight"),
        "heads.logits.weight": ((24, 41), ("hidden", "target_vocabulary"), "linear_weight"),
        "heads.logits.bias": ((41,), ("target_vocabulary",), "bias"),
    }.items():
        assert (found[name].shape, found[name].axes, found[name].role) == expected
    learned = schema.parameters(replace(TRANSLATION, positions="learned", position_offset=2))
    assert learned["embeddings.position.weight"].shape == (21, 24)
    assert learned["target_embeddings.position.weight"].shape == (25, 24)


def test_a_scalar_norm_has_one_scale_and_one_bias():
    norms = [entry for entry in schema.parameters(ANNOTATED).values() if ".norm." in entry.name]
    assert len(norms) == 2 * (2 + 1 + 3 + 1)
    assert {(entry.shape, entry.axes) for entry in norms} == {((1,), ("scalar",))}


def test_a_shared_table_is_one_parameter():
    shared = replace(TRANSLATION, shared_embeddings=True, target_max_length=19, target_vocabulary=39)
    assert schema.parameters(shared).keys() == schema.parameters(TRANSLATION).keys() - {
        "target_embeddings.token.weight"
    }


def test_a_tied_decoder_is_another_name_of_the_token_table_and_no_parameter():
    assert schema.aliases(TIED) == {"heads.masked_lm.decoder.weight": "embeddings.token.weight"}
    assert schema.aliases(PRETRAINING) == schema.aliases(BERT) == {}
    assert "heads.masked_lm.decoder.weight" not in schema.parameters(TIED)


def test_sinusoidal_and_absent_positions_have_no_table():
    for positions in ("sinusoidal", "none"):
        found = schema.parameters(replace(BERT, positions=positions))
        assert found.keys() == BERT_PARAMETERS.keys() - {"embeddings.position.weight"}


def test_the_biases_of_projections_and_output_are_separate_choices():
    without_projection = set(BERT_PARAMETERS) - set(schema.parameters(replace(BERT, projection_bias=False)))
    without_output = set(BERT_PARAMETERS) - set(schema.parameters(replace(BERT, output_bias=False)))
    attention = "encoder.layers.0.attention"
    assert without_projection == {f"{attention}.{name}.bias" for name in ("query", "key", "value")}
    assert without_output == {f"{attention}.output.bias"}


def test_a_pair_that_reads_vectors_has_no_embeddings_and_no_head():
    without_ids = dict.fromkeys(("pad_id", "start_id", "end_id"), None)
    without_tokens = {"source_vocabulary": 0, "target_vocabulary": 0, "positions": "none", "heads_on_top": ()}
    vectors = replace(TRANSLATION, **without_tokens, **without_ids)
    tokens = schema.parameters(TRANSLATION)
    outside = {name for name in tokens if not name.startswith(("encoder.", "decoder."))}
    assert outside == {
        *("embeddings.token.weight", "target_embeddings.token.weight"),
        *("heads.logits.weight", "heads.logits.bias"),
    }
    assert list(schema.parameters(vectors)) == [name for name in tokens if name not in outside]
    assert [*schema.named_values(vectors)][-1] == schema.DECODED


def test_the_biases_of_feed_forward_networks_and_norms_are_separate_choices():
    def missing(name):
        return set(schema.parameters(pair)) - set(schema.parameters(replace(pair, **{name: False})))

    pair = replace(recipe("prenorm-tiny"), layers=1, decoder_layers=1)
    networks = [f"{stack}.layers.0.feed_forward" for stack in ("encoder", "decoder")]
    assert missing("feed_forward_bias") == {f"{path}.{name}.bias" for path in networks for name in ("inner", "output")}
    final = {f"{stack}.final.norm.bias" for stack in ("encoder", "decoder")}
    assert missing("final_norm_bias") == final
    assert missing("norm_bias") == {name for name in schema.parameters(pair) if name.endswith("norm.bias")} - final
    with_head = {name for name in schema.parameters(PRETRAINING) if name.endswith("norm.bias")}
    without = set(schema.parameters(replace(PRETRAINING, norm_bias=False)))
    assert with_head >= {"embeddings.process.norm.bias", "heads.masked_lm.norm.bias"}
    assert not with_head & without


def test_bert_base_has_the_parameters_of_the_bert_base_of_transformers():
    import torch
    from transformers import BertConfig, BertModel

    with torch.device("meta"):  # shapes without memory
        theirs = BertModel(BertConfig()).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.items()}
    ours = schema.parameters(recipe("bert-base"))
    native = huggingface_families.BERT.table(("pooler",)).names(recipe("bert-base"))
    expected = {
        native[name]: entry.shape[::-1] if entry.role == "linear_weight" else entry.shape
        for name, entry in ours.items()
    }
    assert shapes == expected
    assert sum(int(np.prod(entry.shape)) for entry in ours.values()) == 109_482_240
