"""How much useful work a case is: operations on real tokens, padding left out, and the bytes that have to be moved.

A product of (m, k) and (k, n) is 2 m k n operations. Norms, activations, softmax and sums are left out: they are less
than a hundredth of the whole at the sizes of a BERT.
"""

from dataclasses import replace
from math import prod

import numpy as np

from triglot.shared.arrays import Array
from triglot.shared.inputs import Batch
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig

from .arms import TRAINS


def of(workload: str, config: ModelConfig, batch: Batch) -> float:
    """Operations of a workload: each product of a forward pass has two more in the backward pass."""
    return 3 * forward(_trained(config), batch) if workload in TRAINS else forward(config, batch)


def least_bytes(workload: str, config: ModelConfig, batch: Batch, itemsize: int) -> int:
    """The least that any implementation moves: weights once, and the vectors into and out of each layer.

    Of an embedding, the rows of the tokens. A backward pass reads all of it again and writes as much; a step of Adam
    reads and writes each weight and its two moments.
    """
    if workload in TRAINS:
        config = _trained(config)
    parameters = schema.parameters(config).values()
    tables = sum(prod(one.shape) for one in parameters if one.role == "embedding")
    weights = sum(prod(one.shape) for one in parameters)
    tokens = {axis: int(real.sum()) for axis, real in batch.real_tokens().items()}
    vectors = (2 * config.layers + 1) * tokens["source"] + (2 * config.decoder_layers + 1) * tokens.get("target", 0)
    read = weights - tables + vectors * config.hidden_size
    if "masked_lm" in config.heads_on_top:  # its scores are products with the table
        read += config.source_vocabulary * config.hidden_size
    moved = (3 if workload in TRAINS else 1) * read + (6 * weights if workload == "training" else 0)
    return moved * itemsize


def _trained(config: ModelConfig) -> ModelConfig:
    """What a loss reads: the output of an encoder, and none of its heads."""
    return replace(config, heads_on_top=(), tied_embeddings=False) if config.kind == "encoder" else config


def forward(config: ModelConfig, batch: Batch) -> float:
    """Operations of one forward pass over the real tokens of ``batch``."""
    lengths = {axis: real.sum(axis=1).astype(np.float64) for axis, real in batch.real_tokens().items()}
    source = lengths["source"]
    layer = _attention(config, source, source) + _feed_forward(config, source)
    total = config.layers * layer
    if config.kind == "attention":
        total += _attention(config, lengths["target"], source)
    if config.kind == "encoder_decoder":
        target = lengths["target"]
        # A token sees itself and what came before: half of a square, and half of its diagonal.
        own = _projections(config, target, target) + _products(config, target, (target + 1) / 2)
        total += config.decoder_layers * (own + _attention(config, target, source) + _feed_forward(config, target))
        total += 2 * target * config.hidden_size * config.target_vocabulary
    if "masked_lm" in config.heads_on_top:
        total += 2 * source * config.hidden_size * (config.hidden_size + config.source_vocabulary)
    if "pooler" in config.heads_on_top:
        total += 2 * config.hidden_size**2
    return float(np.sum(total))


def _attention(config: ModelConfig, queries: Array, keys: Array) -> Array:
    return _projections(config, queries, keys) + _products(config, queries, keys)


def _projections(config: ModelConfig, queries: Array, keys: Array) -> Array:
    wide, narrow = config.heads * config.key_size, config.heads * config.value_size
    return 2 * config.hidden_size * (queries * wide + keys * (wide + narrow) + queries * narrow)


def _products(config: ModelConfig, queries: Array, keys: Array) -> Array:
    return 2 * config.heads * (config.key_size + config.value_size) * queries * keys


def _feed_forward(config: ModelConfig, tokens: Array) -> Array:
    return 4 * tokens * config.hidden_size * config.feed_forward_size
