"""Wild models: correct ones that are as unlike a trained Transformer as a file may be, to provoke false alarms.

They have every kind, masking and process, hidden sizes of 8 to 256 and up to 12 layers. Their weights are scaled by
1e-3 to 1e2, some channels are far larger than the others, some tables hardly vary, some have a large offset, and some
biases ban a token.
"""

import math
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.model.config import DenseActivation, DenseLayer, ModelConfig
from triglot.shared.model.initializers import initialize
from triglot.shared.model.recipes import recipe
from triglot.shared.model.schema import parameters

FLOAT32_LOWEST = -3.4028234663852886e38
BANNED = -1e9  # a bias that bans a token
LARGEST, LARGEST_FLOAT16 = 1e9, 6e4  # weights are clipped to these magnitudes
# Variants that were added later are drawn from a stream of their own, so that a seed still gives the same sizes.
OFFSET_OF_VARIANTS = 4 * 10**6
RECIPES = ("bert-base", "ernie-base", "dygraph", "minilm", "translation", "annotated", "prenorm", "multihead")


Choice = TypeVar("Choice")


class Draw:
    """Random choices from one seed."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def between(self, low: int, high: int) -> int:
        """Return an integer from ``low`` to ``high``."""
        return int(self.generator.integers(low, high + 1))

    def one_of(self, *choices: Choice) -> Choice:
        """Return one of ``choices``."""
        return choices[int(self.generator.integers(len(choices)))]

    def scale(self, low: float, high: float) -> float:
        """Return a number between ``low`` and ``high``, all orders of magnitude alike."""
        return math.exp(self.generator.uniform(math.log(low), math.log(high)))


def wild_config(seed: int) -> ModelConfig:
    """Return a configuration with random sizes and variants."""
    config = _wild_config(Draw(seed))
    draw = Draw(seed + OFFSET_OF_VARIANTS)
    if config.kind == "attention" or draw.one_of(True, False):
        return config
    return _without_biases(_with_decoder(config, draw), draw)


def _with_decoder(config: ModelConfig, draw: Draw) -> ModelConfig:
    """Return the configuration, with a decoder of vectors if it is an encoder of vectors."""
    if config.source_vocabulary or config.heads_on_top:
        return config
    return replace(
        config,
        kind="encoder_decoder",
        decoder_layers=draw.between(1, 6),
        target_max_length=draw.between(2, 48),
        normalize_memory="n" in config.pre_process and draw.one_of(True, False),
    )


def _without_biases(config: ModelConfig, draw: Draw) -> ModelConfig:
    """Return the configuration without some biases. A scalar norm always has one."""
    keeps = config.norm == "scalar_layer_norm"
    return replace(
        config,
        feed_forward_bias=draw.one_of(True, False),
        norm_bias=keeps or draw.one_of(True, False),
        final_norm_bias=keeps or "n" not in config.final_process or draw.one_of(True, False),
    )


def _wild_config(draw: Draw) -> ModelConfig:
    base = recipe(draw.one_of(*RECIPES))
    masking: dict[str, Any] = draw.one_of(
        {"masking": "exclude", "masking_value": None},
        {"masking": "fill", "masking_value": draw.one_of(-1e9, -1e4, -30.0)},
        {"masking": "add", "masking_value": draw.one_of(-1e9, -1e4, -30.0)},
        {"masking": draw.one_of("add", "fill"), "masking_value": FLOAT32_LOWEST},
    )
    base = replace(
        base,
        shared_embeddings=False,  # may be drawn below
        hidden_size=min(256, int(draw.scale(8, 257))),
        heads=draw.between(1, 8),
        key_size=draw.between(1, 32),
        value_size=draw.between(1, 32),
        source_max_length=draw.between(2, 48),
        activation=draw.one_of("relu", "gelu", "gelu_tanh"),
        norm_eps=draw.one_of(1e-12, 1e-6, 1e-5, 1e-2),
        projection_bias=draw.one_of(True, False),
        output_bias=draw.one_of(True, False),
        **masking,
    )
    if base.kind == "attention":
        return replace(base, target_max_length=draw.between(1, 48))
    pre, post, final = draw.one_of(
        ("", "dan", ""), ("n", "da", "n"), ("n", "da", ""), ("", "da", ""), ("n", "dan", "n"), ("", "na", "")
    )
    base = replace(
        base,
        layers=draw.between(1, 12),
        feed_forward_size=draw.between(1, 4 * base.hidden_size),
        pre_process=pre,
        post_process=post,
        final_process=final,
        norm=draw.one_of("layer_norm", "layer_norm", "scalar_layer_norm"),
        attention_output_activation=draw.one_of("none", "none", "relu"),
        normalize_memory=False,
    )
    if not base.source_vocabulary:
        return base
    base = replace(base, embedding_process=draw.one_of("", "d", "nd"), embedding_scale=draw.one_of(True, False))
    if base.kind == "encoder_decoder":
        vocabulary, shared = draw.between(3, 200), draw.one_of(True, False)
        return replace(
            base,
            shared_embeddings=shared,
            source_vocabulary=vocabulary,
            target_vocabulary=vocabulary if shared else draw.between(3, 200),
            target_max_length=base.source_max_length if shared else draw.between(2, 48),
            decoder_layers=draw.between(1, 6),
            positions=draw.one_of("none", "learned", "sinusoidal", "sinusoidal_per_dimension"),
            normalize_memory=draw.one_of(True, False) if "n" in pre else False,
            pad_id=draw.one_of(None, 0, 2),
            heads_on_top=(draw.one_of("logits", "log_probabilities"),),
        )
    heads = draw.one_of(
        ("pooler",),
        ("masked_lm",),
        ("pooler", "masked_lm", "next_sentence"),
        ("pooler", "sequence_classifier", "token_classifier"),
        ("masked_lm", "replaced_token"),
    )
    positions = draw.one_of("none", "learned", "sinusoidal")
    width = draw.one_of(0, draw.between(8, 257))
    config = replace(
        base,
        source_vocabulary=draw.between(3, 200),
        segments=draw.one_of(0, 2, 16),
        positions=positions,
        positions_skip_padding=positions != "none" and draw.one_of(True, False),
        embedding_size=0 if width == base.hidden_size else width,
        pad_id=draw.one_of(None, 0, 2),
        heads_on_top=heads,
        pooler_activation=draw.one_of("tanh", "relu", "gelu") if "pooler" in heads else "tanh",
        classes=draw.between(1, 9) if "token_classifier" in heads else 0,
        tied_embeddings="masked_lm" in heads and draw.one_of(True, False),
    )
    # Drawn last, so that the other choices of a seed stay what they were.
    return _with_sentence_embedding(config, draw) if draw.between(1, 4) == 1 else config


def _with_sentence_embedding(config: ModelConfig, draw: Draw) -> ModelConfig:
    return replace(
        config,
        heads_on_top=(*config.heads_on_top, "sentence_embedding"),
        sentence_pooling=draw.one_of("mean", "cls", "max"),
        sentence_layers=tuple(_wild_layer(draw) for _ in range(draw.between(0, 2))),
        sentence_normalized=draw.one_of(True, False),
    )


def _wild_layer(draw: Draw) -> DenseLayer:
    activation: DenseActivation = draw.one_of("none", "tanh", "relu", "gelu", "gelu_tanh")
    return DenseLayer(size=draw.between(1, 64), bias=draw.one_of(True, False), activation=activation)


def wild_checkpoint(seed: int, dtype: str) -> Checkpoint:
    """Return a wild model with wild weights, which ``dtype`` can hold."""
    config = wild_config(seed)
    draw = Draw(seed + 10**6)
    kind = draw.one_of("scaled", "scaled", "outliers", "flat", "offset", "banned", "mixed")
    scale = draw.scale(1e-3, 1e2)
    largest = LARGEST_FLOAT16 if dtype == "float16" else LARGEST
    tensors: dict[str, Array] = {}
    described = parameters(config)
    for name, tensor in initialize(config, seed).items():
        role = described[name].role
        values = tensor.astype(np.float64)
        if np.ptp(values) == 0:
            values = values + draw.generator.normal(0, 0.2, values.shape)
        if kind in ("scaled", "mixed") and role in ("linear_weight", "embedding"):
            values = values * (scale if kind == "scaled" else draw.scale(1e-3, 1e2))
        if kind in ("outliers", "mixed") and role in ("linear_weight", "scale"):
            outlying = np.less(draw.generator.random((values.shape[-1],)), 0.05)
            values = values * np.where(outlying, draw.scale(10, 1e3), 1.0)
        if kind in ("flat", "mixed") and role == "embedding" and draw.one_of(True, False):
            values = values * 1e-6 + draw.one_of(0.0, 1.0)
        if kind in ("offset", "mixed") and role in ("embedding", "bias") and draw.one_of(True, False):
            values = values + draw.scale(1, 1e3)
        if kind in ("banned", "mixed") and name in ("heads.masked_lm.bias", "heads.logits.bias"):
            values[draw.between(0, len(values) - 1)] = BANNED
        tensors[name] = np.clip(values, -largest, largest).astype(np.float32)
    return Checkpoint(config, tensors)
