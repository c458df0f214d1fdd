"""The named values of a configuration: their names and axes, in the order of the computation."""

from dataclasses import replace

import pytest
from one_layer_models import BERT, DYGRAPH, PRETRAINING, TIED, TRANSLATION

from triglot.shared.model.schema import named_values

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
