"""Correct implementations never diverge, for many shapes, weights and inputs.

The short form takes one shape and one seed. ``make audit`` takes all shapes with ten seeds each, in every dtype.
"""

import sys
from dataclasses import replace

import numpy as np
import pytest

import triglot
from triglot.shared.arrays import HALVES
from triglot.shared.choices import DTYPES
from triglot.shared.model.recipes import recipe

SHAPES = 24
SHORT_FORM = [(7, "float32")]  # attention alone, which is quick


def shape(number):
    """Return a configuration with random sizes and variants, drawn with the seed ``number``."""
    generator = np.random.default_rng(number)

    def between(low, high):
        return int(generator.integers(low, high + 1))

    def one_of(*choices):
        return choices[int(generator.integers(len(choices)))]

    name = one_of("bert-base", "ernie-base", "dygraph", "minilm", "translation", "annotated", "prenorm", "multihead")
    layers, inner = between(1, 3), between(1, 96)
    base = replace(
        recipe(name),
        shared_embeddings=False,  # may be drawn below
        hidden_size=between(8, 64),
        heads=between(1, 4),
        key_size=between(1, 16),
        value_size=between(1, 16),
        source_max_length=between(2, 48),
        activation=one_of("relu", "gelu", "gelu_tanh"),
        norm_eps=one_of(1e-12, 1e-6, 1e-5, 1e-2),
        projection_bias=one_of(True, False),
        **one_of(
            {"masking": "exclude", "masking_value": None},
            {"masking": "fill", "masking_value": -1e9},
            {"masking": "add", "masking_value": -1e4},
            {"masking": one_of("add", "fill"), "masking_value": -3.4028234663852886e38},  # float32's lowest number
        ),
    )
    if base.kind == "attention":
        return replace(base, target_max_length=between(1, 48), output_bias=one_of(True, False))
    base = replace(base, layers=layers, feed_forward_size=inner)
    if not base.source_vocabulary:
        return base
    if base.kind == "encoder_decoder":
        vocabulary, shared = between(3, 200), one_of(True, False)
        return replace(
            base,
            shared_embeddings=shared,
            source_vocabulary=vocabulary,
            target_vocabulary=vocabulary if shared else between(3, 200),
            target_max_length=base.source_max_length if shared else between(1, 48),
            decoder_layers=between(1, 3),
            positions=one_of("none", "learned", "sinusoidal", "sinusoidal_per_dimension"),
            embedding_scale=one_of(True, False),
            normalize_memory=one_of(True, False),
            norm=one_of("layer_norm", "scalar_layer_norm"),
            attention_output_activation=one_of("none", "relu"),
            pad_id=one_of(None, 0, 2),
            heads_on_top=(one_of("logits", "log_probabilities"),),
        )
    heads = one_of(("pooler",), ("masked_lm",), ("pooler", "masked_lm", "next_sentence"))
    return replace(
        base,
        source_vocabulary=between(3, 200),
        segments=one_of(0, 2, 16),
        positions=one_of("none", "learned", "sinusoidal"),
        pad_id=one_of(None, 0, 2),
        heads_on_top=heads,
        tied_embeddings="masked_lm" in heads and one_of(True, False),
    )


def pytest_generate_tests(metafunc):
    if "number" in metafunc.fixturenames:
        thorough = metafunc.config.getoption("--seeds") > 1
        cases = [(number, dtype) for number in range(SHAPES) for dtype in DTYPES]
        metafunc.parametrize(("number", "dtype"), cases if thorough else SHORT_FORM)


def test_correct_code_never_diverges(number, dtype, pytestconfig, make_checkpoint, record_property):
    config = shape(number)
    frameworks = [name for name in triglot.frameworks() if name != "paddle" or dtype not in HALVES]
    shares = []
    count = (pytestconfig.getoption("--seeds") + 1) // 2
    for seed in range(number * count, (number + 1) * count):
        report = triglot.check(make_checkpoint(config, seed), frameworks, isolate=False, seed=seed, dtype=dtype)
        alarms = [row for row in report.rows if row.verdict != "pass"]
        assert report.verdict == "pass", (seed, alarms)
        shares.append(max(row.budget_used for row in report.rows))
    # Recorded by the audit: the share of the budget that the worst value uses up.
    record_property("largest_share_of_a_budget", max(shares))


@pytest.fixture(autouse=True)
def discard_compiled_code():
    """Clear JAX's cache, which would grow by gigabytes over an audit."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


def test_the_shapes_differ():
    shapes = [shape(number) for number in range(SHAPES)]
    assert len(set(shapes)) == SHAPES
    assert {config.kind for config in shapes} == {"encoder", "encoder_decoder", "attention"}
    assert {config.shared_embeddings for config in shapes} == {True, False}
