"""The decoder of every implementation: what ``forward`` accepts, returns and refuses, and its parts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import triglot
from triglot import impls
from triglot.shared import inputs
from triglot.shared.model.recipes import recipe

TRANSLATION = recipe("translation-tiny")  # 39 tokens to 41, at most 19 to 23; the id 2 is padding
ANNOTATED = recipe("annotated-tiny")
SHARED = replace(TRANSLATION, shared_embeddings=True, target_max_length=19, target_vocabulary=39)
# Reads vectors on both sides, up to 37 and 23, and has no head.
VECTORS = replace(recipe("dygraph-tiny"), kind="encoder_decoder", decoder_layers=1, target_max_length=23)
DECODERS = {"translation": TRANSLATION, "annotated": ANNOTATED, "shared": SHARED}
SOURCE, TARGET = np.array([[3, 4, 5], [6, 7, 8]]), np.array([[0, 9, 10, 11], [0, 12, 13, 14]])


@pytest.fixture(scope="module")
def built():
    """Return a function that builds the model of an implementation once."""
    checkpoint, models = triglot.initialize("translation-tiny"), {}

    def get(implementation):
        if implementation not in models:
            models[implementation] = triglot.build(implementation, checkpoint)
        return models[implementation]

    return get


def random_pair(config, lengths=(7, 1, 5), seed=0) -> Any:
    return inputs.random_batch(config, lengths, np.random.default_rng(seed))


def forward(model, batch):
    return model.forward(batch.source, batch.target, batch.valid, batch.target_valid)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "flat source": ({"source_ids": SOURCE[0]}, r"source_ids is int64 \(3,\); expected integers \(B, S\)"),
    "float source": ({"source_ids": SOURCE / 2}, r"source_ids is float64.*expected integers"),
    "empty source": ({"source_ids": SOURCE[:, :0]}, r"batch is empty.*at least one"),
    "long source": ({"source_ids": np.full((2, 20), 3)}, "length 20 is over the maximum 19"),
    "unknown source token": ({"source_ids": SOURCE + 33}, "source_ids holds 41; expected ids from 0 to 38"),
    "ragged source": ({"source_ids": [[3], [4, 5]]}, r"source_ids.*different lengths; pad"),
    "flat target": ({"target_ids": TARGET[0]}, r"target_ids is int64 \(4,\); expected integers \(2, T\)"),
    "float target": ({"target_ids": TARGET / 2}, r"target_ids is float64.*expected integers"),
    "bool target": ({"target_ids": TARGET > 3}, r"target_ids is bool.*expected integers"),
    "target of another batch": ({"target_ids": TARGET[:1]}, r"target_ids.*\(1, 4\); expected integers \(2, T\)"),
    "empty target": ({"target_ids": TARGET[:, :0]}, r"target_ids.*\(2, 0\); expected integers \(2, T\)"),
    "long target": ({"target_ids": np.full((2, 24), 3)}, "target length 24 is over the maximum 23"),
    "unknown target token": ({"target_ids": TARGET + 27}, "target_ids holds 41; expected ids from 0 to 40"),
    "negative target token": ({"target_ids": TARGET - 1}, "target_ids holds -1; expected ids from 0 to 40"),
    "ragged target": ({"target_ids": [[3], [4, 5]]}, r"target_ids.*different lengths; pad"),
    "float source_valid": ({"source_valid": np.ones((2, 3))}, r"source_valid is float64.*expected bool \(2, 3\)"),
    "source_valid of the target": (
        {"source_valid": np.ones((2, 4), np.bool_)},
        r"source_valid.*\(2, 4\); expected bool \(2, 3\)",
    ),
    "source without a real token": (
        {"source_ids": [[3, 4, 5], [2, 2, 2]]},
        r"row 1 of source_valid has no real token; leave",
    ),
    "integer target_valid": (
        {"target_valid": np.ones((2, 4), np.int64)},
        r"target_valid is int64.*expected bool \(2, 4\)",
    ),
    "target_valid of the source": (
        {"target_valid": np.ones((2, 3), np.bool_)},
        r"target_valid.*\(2, 3\); expected bool \(2, 4\)",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_pair_that_does_not_fit_is_refused_everywhere(kind, implementation, built):
    changes, message = REFUSED[kind]
    with pytest.raises(triglot.InputError, match=message):
        built(implementation).forward(**{"source_ids": SOURCE, "target_ids": TARGET, **changes})


def test_encoder_refuses_forward(implementation, make_checkpoint):
    model = impls.build(implementation, make_checkpoint("bert-base-tiny"))
    with pytest.raises(triglot.InputError, match=r"no decoder.*use encode and heads"):
        model.forward(SOURCE, TARGET)


def test_encoder_decoder_encodes_but_refuses_heads(implementation, built):
    model = built(implementation)
    with pytest.raises(triglot.InputError, match=r"heads.*decoder; use forward"):
        model.heads(SOURCE)
    trace = model.trace(inputs.pair_batch(TRANSLATION, SOURCE, TARGET))
    np.testing.assert_array_equal(model.encode(SOURCE), trace["output"])


@pytest.mark.long(implementation="jax")
def test_a_pair_that_reads_vectors_returns_vectors(implementation, make_checkpoint):
    model, batch = impls.build(implementation, make_checkpoint(VECTORS)), random_pair(VECTORS)
    trace, decoded = model.trace(batch), forward(model, batch)
    assert decoded.shape == batch.target.shape
    np.testing.assert_array_equal(decoded, trace["decoded"])
    np.testing.assert_array_equal(model.encode(batch.source, batch.valid), trace["output"])
    assert not batch.target_valid.all()
    np.testing.assert_array_equal(decoded[~batch.target_valid], 0)
    everything = model.forward(batch.source, batch.target)
    np.testing.assert_array_equal(
        everything, model.forward(batch.source, batch.target, *map(np.ones_like, (batch.valid, batch.target_valid)))
    )
    assert (everything[~batch.target_valid] != 0).any(axis=-1).all()
    with pytest.raises(triglot.InputError, match=r"reads vectors and has no vocabulary, so it cannot generate"):
        model.generate(batch.source)
    with pytest.raises(triglot.TrainingError, match=r"without a vocabulary, which has no loss"):
        model.loss_and_gradients(batch)


@pytest.mark.long(implementation="jax")
def test_a_pair_that_reads_vectors_is_causal(implementation, make_checkpoint):
    model, batch = impls.build(implementation, make_checkpoint(VECTORS), dtype="float64"), random_pair(VECTORS)
    later = batch.target.copy()
    later[:, 2:] += 1
    decoded, changed = forward(model, batch), forward(model, replace(batch, target=later))
    np.testing.assert_array_equal(changed[:, :2], decoded[:, :2])
    assert (changed[0, 2:] != decoded[0, 2:]).any()


@pytest.mark.parametrize("config", DECODERS.values(), ids=DECODERS)
def test_forward_agrees_with_trace_and_is_zero_at_padding(implementation, config, make_checkpoint):
    model, batch = impls.build(implementation, make_checkpoint(config)), random_pair(config)
    scores = forward(model, batch)
    assert scores.shape == (*batch.target.shape, config.target_vocabulary)
    np.testing.assert_array_equal(scores, model.trace(batch)[f"heads.{config.heads_on_top[0]}"])
    assert not batch.target_valid.all()
    np.testing.assert_array_equal(scores[~batch.target_valid], 0)
    assert (scores[batch.target_valid] != 0).any(axis=-1).all()


def test_pad_id_decides_which_tokens_are_real_by_default(implementation, built):
    source, target = np.array([[3, 4, 2], [6, 7, 8]]), np.array([[0, 9, 10, 11], [0, 12, 2, 2]])
    model = built(implementation)
    explicit = model.forward(source, target, source != 2, target != 2)
    np.testing.assert_array_equal(model.forward(source, target), explicit)
    np.testing.assert_array_equal(explicit[1, 2:], 0)
    # An explicit mask overrides the pad id.
    everything = model.forward(source, target, np.ones_like(source, np.bool_), np.ones_like(target, np.bool_))
    assert (everything[1, 2:] != 0).all()


@pytest.mark.long(implementation="jax")
def test_all_tokens_are_real_without_a_pad_id(implementation, make_checkpoint):
    model = impls.build(implementation, make_checkpoint(ANNOTATED))
    source, target = np.array([[3, 4, 2]]), np.array([[0, 2]])
    everything = np.ones_like(source, np.bool_), np.ones_like(target, np.bool_)
    np.testing.assert_array_equal(model.forward(source, target), model.forward(source, target, *everything))


@pytest.mark.long(implementation="jax")
@pytest.mark.parametrize("config", [TRANSLATION, ANNOTATED], ids=["exclude", "fill"])
def test_padding_and_later_tokens_change_nothing(implementation, config, make_checkpoint):
    model = impls.build(implementation, make_checkpoint(config), dtype="float64")
    batch = random_pair(config, lengths=(9, 4, 6))
    scores = forward(model, batch)
    other = replace(
        batch, source=np.where(batch.valid, batch.source, 5), target=np.where(batch.target_valid, batch.target, 5)
    )
    np.testing.assert_array_equal(forward(model, other), scores)
    later = replace(batch, target=np.where(np.arange(batch.target.shape[1]) < 2, batch.target, 7))
    changed = forward(model, later)
    np.testing.assert_array_equal(changed[:, :2], scores[:, :2])
    assert (changed[0, 2:] != scores[0, 2:]).any(), "a target token changes the scores after it"
    short = int(batch.target_valid[1].sum())
    real = np.ones((1, 4), np.bool_), np.ones((1, short), np.bool_)
    alone = model.forward(batch.source[1:2, :4], batch.target[1:2, :short], *real)
    # Sums over other lengths round differently: 1e-13 is 500 units in float64.
    np.testing.assert_allclose(scores[1:2, :short], alone, rtol=0, atol=1e-13)


def test_every_source_token_reaches_the_scores(implementation, built):
    model, other = built(implementation), SOURCE.copy()
    other[:, -1] = 30
    assert (model.forward(SOURCE, TARGET) != model.forward(other, TARGET)).any(axis=-1).all()


def test_log_probabilities_sum_to_one(implementation, make_checkpoint):
    model = impls.build(implementation, make_checkpoint(ANNOTATED), dtype="float64")
    batch = random_pair(ANNOTATED)
    total = np.exp(forward(model, batch)).sum(axis=-1)
    # 41 exponentials of numbers that are off by a few units.
    np.testing.assert_allclose(total[batch.target_valid], 1, rtol=0, atol=1e-13)


def test_source_and_target_share_one_table(implementation, make_checkpoint):
    checkpoint = make_checkpoint(SHARED)
    assert not [name for name in checkpoint.tensors if name.startswith("target_embeddings")]
    model = impls.build(implementation, checkpoint)
    trace = model.trace(inputs.pair_batch(SHARED, SOURCE, SOURCE))
    np.testing.assert_array_equal(trace["embeddings.sum"], trace["target_embeddings.sum"])
    apart = impls.build(implementation, make_checkpoint(TRANSLATION)).trace(
        inputs.pair_batch(TRANSLATION, SOURCE, SOURCE)
    )
    assert (apart["embeddings.sum"] != apart["target_embeddings.sum"]).any()


@pytest.mark.long(framework="jax")
def test_shared_tables_pass_every_check(framework, make_checkpoint, check_small):
    config = replace(SHARED, layers=1, decoder_layers=1)
    report = check_small(make_checkpoint(config), framework)
    assert report.verdict == "pass", [row for row in report.rows if row.verdict != "pass"]


@pytest.mark.long(framework="jax")
def test_target_shorter_than_the_source_passes_every_check(framework, make_checkpoint, check_small):
    config = replace(ANNOTATED, target_max_length=3, layers=1, decoder_layers=1, attention_output_activation="relu")
    report = check_small(make_checkpoint(config), framework)
    assert report.verdict == "pass", [row for row in report.rows if row.verdict != "pass"]


def test_positions_per_dimension_and_embedding_scale(implementation, make_checkpoint):
    config = replace(TRANSLATION, embedding_scale=True)
    checkpoint = make_checkpoint(config)
    model = impls.build(implementation, checkpoint, dtype="float32")
    seen = model.trace(inputs.pair_batch(config, SOURCE, TARGET))
    dimensions = np.arange(24)
    for name, ids in (("embeddings", SOURCE), ("target_embeddings", TARGET)):
        place = np.arange(ids.shape[1])[:, None] / 10000.0 ** (dimensions / 24)
        table = np.where(dimensions % 2 == 0, np.sin(place), np.cos(place))
        tokens = checkpoint.tensors[f"{name}.token.weight"][ids].astype(np.float64)
        # Root, product, table and sum each round once, on numbers below 2.
        np.testing.assert_allclose(seen[f"{name}.sum"], tokens * 24**0.5 + table, rtol=0, atol=4 * 2.0**-24 * 2)


def test_attention_output_activation_is_applied(implementation, make_checkpoint):
    plain, with_relu = (replace(TRANSLATION, attention_output_activation=name) for name in ("none", "relu"))
    batch, name = inputs.pair_batch(TRANSLATION, SOURCE, TARGET), "encoder.layers.0.attention.output"
    before, after = (
        impls.build(implementation, make_checkpoint(config)).trace(batch)[name] for config in (plain, with_relu)
    )
    assert before.min() < 0
    np.testing.assert_array_equal(after, np.maximum(before, 0))


@pytest.mark.parametrize("deviation", [1.0, 1e-3, 1e-6, 0.0])
def test_norm_is_the_one_of_article_003(implementation, deviation, make_checkpoint):
    """Its input is replaced by values where epsilon matters and values where it does not."""
    import torch

    checkpoint = make_checkpoint(ANNOTATED)
    model = impls.build(implementation, checkpoint, dtype="float64")
    batch = random_pair(ANNOTATED)
    x = np.random.default_rng(1).standard_normal((*batch.target.shape, 24)) * deviation + 0.5
    path = "decoder.layers.0.post_feed_forward.residual"
    after = "decoder.layers.1.pre_self_attention.norm"
    seen = model.trace(batch, {path: x})[after]
    scale, bias = (torch.from_numpy(checkpoint.tensors[f"{after}.{leaf}"]).double() for leaf in ("scale", "bias"))
    given = torch.from_numpy(x)
    mean, spread = given.mean(-1, keepdim=True), given.std(-1, keepdim=True)
    expected = (scale * (given - mean) / (spread + 1e-6) + bias).numpy()
    # The mean's rounding, 2^-53, divided by the deviation (at least epsilon, 1e-6), and some roundings of the quotient.
    np.testing.assert_allclose(seen, expected, rtol=0, atol=24 * 2.0**-53 / (deviation + 1e-6) + 32 * 2.0**-53)
