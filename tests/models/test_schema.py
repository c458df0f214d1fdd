"""The parameters, the initial weights and the named values of a configuration."""

import itertools
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from scipy.stats import truncnorm

from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import CheckpointError
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.initializers import STANDARD_DEVIATION, initialize, perturb
from triglot.shared.model.recipes import recipe, recipes
from triglot.shared.model.schema import named_values
from triglot.shared.porting.dialects import huggingface_families

BERT = replace(recipe("bert-base-tiny"), layers=1)
PRETRAINING = replace(BERT, heads_on_top=("pooler", "masked_lm", "next_sentence"))
TIED = replace(PRETRAINING, tied_embeddings=True)
DYGRAPH = replace(recipe("dygraph-tiny"), layers=1)
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

HIDDEN = ("batch", "source", "hidden")
INNER = ("batch", "source", "feed_forward")
BERT_ACTIVATIONS = {
    "embeddings.sum": HIDDEN,
    "embeddings.process.norm": HIDDEN,
    "encoder.layers.0.attention.key": ("batch", "head", "source", "key"),
    "encoder.layers.0.attention.value": ("batch", "head", "source", "value"),
    "encoder.layers.0.attention.query": ("batch", "head", "source", "key"),
    "encoder.layers.0.attention.scores": ("batch", "head", "source", "source"),
    "encoder.layers.0.attention.weights": ("batch", "head", "source", "position"),
    "encoder.layers.0.attention.context": ("batch", "source", "heads*value"),
    "encoder.layers.0.attention.output": HIDDEN,
    "encoder.layers.0.post_attention.residual": HIDDEN,
    "encoder.layers.0.post_attention.norm": HIDDEN,
    "encoder.layers.0.feed_forward.inner": INNER,
    "encoder.layers.0.feed_forward.activation": INNER,
    "encoder.layers.0.feed_forward.output": HIDDEN,
    "encoder.layers.0.post_feed_forward.residual": HIDDEN,
    "encoder.layers.0.post_feed_forward.norm": HIDDEN,
    "output": ("batch", "position", "hidden"),
    "heads.pooler": ("batch", "hidden"),
}
PRETRAINING_ACTIVATIONS = {
    "heads.masked_lm.transform": HIDDEN,
    "heads.masked_lm.activation": HIDDEN,
    "heads.masked_lm.norm": HIDDEN,
    "heads.masked_lm": ("batch", "position", "vocabulary"),
    "heads.next_sentence": ("batch", "relation"),
}
DYGRAPH_ACTIVATIONS = {
    "encoder.layers.0.pre_attention.norm": HIDDEN,
    "encoder.layers.0.attention.key": ("batch", "head", "source", "key"),
    "encoder.layers.0.attention.value": ("batch", "head", "source", "value"),
    "encoder.layers.0.attention.query": ("batch", "head", "source", "key"),
    "encoder.layers.0.attention.scores": ("batch", "head", "source", "source"),
    "encoder.layers.0.attention.weights": ("batch", "head", "source", "position"),
    "encoder.layers.0.attention.context": ("batch", "source", "heads*value"),
    "encoder.layers.0.attention.output": HIDDEN,
    "encoder.layers.0.post_attention.residual": HIDDEN,
    "encoder.layers.0.pre_feed_forward.norm": HIDDEN,
    "encoder.layers.0.feed_forward.inner": INNER,
    "encoder.layers.0.feed_forward.activation": INNER,
    "encoder.layers.0.feed_forward.output": HIDDEN,
    "encoder.layers.0.post_feed_forward.residual": HIDDEN,
    "encoder.final.norm": HIDDEN,
    "output": ("batch", "position", "hidden"),
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


TRANSLATION = replace(recipe("translation-tiny"), layers=1, decoder_layers=1)
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


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_tensors_of_the_schema_are_accepted(dtype):
    tensors = {name: tensor.astype(dtype) for name, tensor in initialize(BERT).items()}
    schema.verify(BERT, tensors)
    assert Checkpoint(BERT, tensors).tensors is tensors


def test_one_message_names_everything_that_is_wrong():
    tensors: dict[str, Array] = {**initialize(BERT)}
    del tensors["embeddings.segment.weight"], tensors["heads.pooler.bias"]
    tensors["embeddings.task.weight"] = np.zeros((3, 24), np.float32)
    tensors["heads.pooler.weight"] = np.zeros((24, 23), np.float32)
    tensors["embeddings.process.norm.bias"] = np.zeros(24, ml_dtypes.float8_e4m3fn)
    tensors["embeddings.process.norm.scale"] = np.zeros((1, 24), np.int32)
    tensors["embeddings.position.weight"] = tensors["embeddings.position.weight"].astype(">f4")
    with pytest.raises(CheckpointError) as error:
        schema.verify(BERT, tensors)
    problems = str(error.value).removeprefix("the tensors do not match the configuration: ").split("; ")
    assert problems == [
        "missing embeddings.segment.weight (2, 24)",
        "missing heads.pooler.bias (24,)",
        "unexpected embeddings.task.weight",
        "embeddings.position.weight has dtype >f4, expected one of float64, float32, float16, bfloat16",
        "embeddings.process.norm.scale has shape (1, 24), expected (24,)",
        "embeddings.process.norm.scale has dtype int32, expected one of float64, float32, float16, bfloat16",
        "embeddings.process.norm.bias has dtype float8_e4m3fn, expected one of float64, float32, float16, bfloat16",
        "heads.pooler.weight has shape (24, 23), expected (24, 24)",
        "give the tensors that the configuration describes, or the configuration of these tensors",
    ]


def test_a_transposed_weight_is_misshapen():
    tensors = initialize(BERT)
    name = "encoder.layers.0.feed_forward.inner.weight"
    tensors[name] = tensors[name].T
    with pytest.raises(CheckpointError, match=rf"{name} has shape \(40, 24\), expected \(24, 40\)"):
        Checkpoint(BERT, tensors)


@pytest.mark.parametrize("name", [name for name in recipes() if name.endswith("-tiny")])
def test_initial_weights_are_those_of_the_schema_and_of_the_seed(name):
    config = recipe(name)
    first, again, other = initialize(config, 3), initialize(config, 3), initialize(config, 4)
    schema.verify(config, first)
    for tensor_name, entry in schema.parameters(config).items():
        tensor = first[tensor_name]
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, again[tensor_name])
        if entry.role == "scale":
            np.testing.assert_array_equal(tensor, 1)
        elif entry.role == "bias" and (config.initializer in ("bert", "prenorm") or not entry.fan_in):
            np.testing.assert_array_equal(tensor, 0)
        else:
            assert (tensor != other[tensor_name]).mean() > 0.99, tensor_name


def test_a_tensor_is_drawn_independently_of_every_other():
    fewer = initialize(replace(BERT, segments=0, heads_on_top=()))
    more = initialize(replace(BERT, segments=3, tasks=2, layers=2))
    assert fewer.keys() < more.keys()
    for name, tensor in fewer.items():
        np.testing.assert_array_equal(tensor, more[name], err_msg=name)
    drawn = [more[f"encoder.layers.{i}.attention.{name}.weight"] for i in (0, 1) for name in ("query", "key", "value")]
    assert len({tensor.tobytes() for tensor in drawn}) == len(drawn)


def test_initial_matrices_are_normal_and_cut_at_two_deviations():
    assert STANDARD_DEVIATION == 0.02
    weights = initialize(replace(BERT, source_vocabulary=5000))["embeddings.token.weight"].astype(np.float64)
    scaled = weights / 0.02
    # 0.02 and each product are rounded to float32: two half units, 2^-23 in all.
    bound = 2 * (1 + 2.0**-23)
    assert np.abs(scaled).max() <= bound
    # Values outside are redrawn, not clipped. The density at an end is 0.057, so 7 of 120,000 values are expected
    # within 0.0005 of the two ends. Of a clipped sample, 4.6 % (5,460 values) would be at the ends.
    assert (np.abs(scaled) > 1.9995).sum() < 50
    # Five standard errors of a sample of this size. That of the deviation is below 1 / sqrt(2 n), a normal sample's.
    expected = truncnorm(-2, 2)
    assert abs(scaled.mean()) < 5 * expected.std() / np.sqrt(scaled.size)
    assert abs(scaled.std() / expected.std() - 1) < 5 / np.sqrt(2 * scaled.size)


def test_perturbing_changes_exactly_the_constant_tensors_and_no_argument():
    tensors: dict[str, Array] = {**initialize(BERT)}
    tensors["heads.pooler.bias"] = tensors["heads.pooler.bias"].astype(np.float64)
    before = {name: tensor.copy() for name, tensor in tensors.items()}
    perturbed = perturb(tensors, 1)
    assert list(perturbed) == list(tensors)
    for name, entry in schema.parameters(BERT).items():
        np.testing.assert_array_equal(tensors[name], before[name], err_msg=name)
        assert perturbed[name].dtype == tensors[name].dtype
        if entry.role in ("scale", "bias"):
            assert (perturbed[name] != tensors[name]).all(), name
        else:
            assert perturbed[name] is tensors[name]


def test_the_perturbation_depends_on_seed_and_name_and_has_the_deviation_0_2():
    tensors = initialize(replace(BERT, layers=8))
    first, again, other = perturb(tensors, 1), perturb(tensors, 1), perturb(tensors, 2)
    biases = [name for name in tensors if name.endswith("bias")]
    for name in biases:
        np.testing.assert_array_equal(first[name], again[name], err_msg=name)
        assert (first[name] != other[name]).all(), name
    assert len({first[name].tobytes() for name in biases}) == len(biases)
    noise = np.concatenate([first[name] for name in biases])
    # Five standard errors of the mean and of the deviation of a normal sample of this size.
    assert abs(noise.mean()) < 5 * 0.2 / np.sqrt(noise.size)
    assert abs(noise.std() / 0.2 - 1) < 5 / np.sqrt(2 * noise.size)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (BERT, BERT_ACTIVATIONS),
        (PRETRAINING, BERT_ACTIVATIONS | PRETRAINING_ACTIVATIONS),
        (TIED, BERT_ACTIVATIONS | PRETRAINING_ACTIVATIONS),
        (DYGRAPH, DYGRAPH_ACTIVATIONS),
    ],
    ids=["bert", "pre-training", "tied", "dygraph"],
)
def test_named_values_are_those_spelled_out_here_in_this_order(config, expected):
    values = named_values(config)
    assert {name: entry.axes for name, entry in values.items()} == expected
    assert list(values) == list(expected)
    assert [entry.name for entry in values.values()] == list(expected)


def test_a_decoder_shows_these_values_in_this_order():
    def attention(path, name, queries, keys):
        sublayer = f"{path}.{name}"
        return {
            f"{sublayer}.key": ("batch", "head", keys, "key"),
            f"{sublayer}.value": ("batch", "head", keys, "value"),
            f"{sublayer}.query": ("batch", "head", queries, "key"),
            f"{sublayer}.scores": ("batch", "head", queries, keys),
            f"{sublayer}.weights": ("batch", "head", queries, "position"),
            f"{sublayer}.context": ("batch", queries, "heads*value"),
            f"{sublayer}.output": ("batch", queries, "hidden"),
            f"{path}.post_{name}.residual": ("batch", queries, "hidden"),
        }

    hidden, inner, path = ("batch", "target", "hidden"), ("batch", "target", "feed_forward"), "decoder.layers.0"
    expected = {
        "target_embeddings.sum": hidden,
        f"{path}.pre_self_attention.norm": hidden,
        **attention(path, "self_attention", "target", "target"),
        f"{path}.pre_cross_attention.norm": hidden,
        f"{path}.memory.norm": ("batch", "source", "hidden"),
        **attention(path, "cross_attention", "target", "source"),
        f"{path}.pre_feed_forward.norm": hidden,
        f"{path}.feed_forward.inner": inner,
        f"{path}.feed_forward.activation": inner,
        f"{path}.feed_forward.output": hidden,
        f"{path}.post_feed_forward.residual": hidden,
        "decoded": ("batch", "position", "hidden"),
        "heads.logits": ("batch", "position", "target_vocabulary"),
    }
    found = {name: entry.axes for name, entry in named_values(TRANSLATION).items()}
    names = list(found)[list(found).index("output") + 1 :]
    assert {name: found[name] for name in names} == expected
    assert names == list(expected)
    without = named_values(replace(TRANSLATION, normalize_memory=False))
    assert found.keys() - without.keys() == {f"{path}.memory.norm"}


def test_a_second_layer_shows_the_values_of_the_first():
    names = [
        name.replace("layers.1.", "layers.0.") for name in named_values(replace(BERT, layers=2)) if "layers.1." in name
    ]
    assert names == [name for name in BERT_ACTIVATIONS if "layers.0." in name]
