"""The useful work of a case: operations on real tokens, without padding, and the bytes that have to be moved.

A product of (m, k) and (k, n) counts as 2 m k n operations. Norms, activations, softmax and sums are left out: they are
less than a hundredth of the whole at the sizes of a BERT.
"""

from dataclasses import replace
from math import prod

import numpy as np

from triglot.shared.arrays import Array
from triglot.shared.choices import WITH_GRADIENTS
from triglot.shared.inputs import Batch
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig


def operations(workload: str, config: ModelConfig, batch: Batch) -> float:
    """Return the operations of a workload. Each product of a forward pass has two more in the backward pass."""
    if workload in WITH_GRADIENTS:
        return 3 * forward_operations(_trained(config), batch)
    return forward_operations(config, batch)


def least_bytes(workload: str, config: ModelConfig, batch: Batch, itemsize: int) -> int:
    """Return the fewest bytes that an implementation has to move.

    These are the weights once, and the vectors into and out of each layer. Of an embedding, only the rows of the tokens
    count. A backward pass reads everything again and writes as much. A step of Adam reads and writes each weight and
    its two moments.
    """
    if workload in WITH_GRADIENTS:
        config = _trained(config)
    parameters = schema.parameters(config).values()
    tables = sum(prod(parameter.shape) for parameter in parameters if parameter.role == "embedding")
    weights = sum(prod(parameter.shape) for parameter in parameters)
    tokens = {axis: int(real.sum()) for axis, real in batch.real_tokens().items()}
    vectors = (2 * config.layers + 1) * tokens["source"] + (2 * config.decoder_layers + 1) * tokens.get("target", 0)
    read = weights - tables + vectors * config.hidden_size
    if "masked_lm" in config.heads_on_top:  # the scores are products with the embedding table
        read += config.source_vocabulary * config.embedding_width
    moved = (3 if workload in WITH_GRADIENTS else 1) * read + (6 * weights if workload == "training" else 0)
    return moved * itemsize


def _trained(config: ModelConfig) -> ModelConfig:
    """Return the part of a model that its loss reads: the output of an encoder, without heads."""
    return replace(config, heads_on_top=(), tied_embeddings=False) if config.kind == "encoder" else config


def forward_operations(config: ModelConfig, batch: Batch) -> float:
    """Return the operations of one forward pass over the real tokens of ``batch``."""
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
        total += 2 * source * config.embedding_width * (config.hidden_size + config.source_vocabulary)
    if "pooler" in config.heads_on_top:
        total += 2 * config.hidden_size**2
    if "sequence_classifier" in config.heads_on_top:
        total += 2 * config.hidden_size * config.classes
    if "token_classifier" in config.heads_on_top:
        total += 2 * source * config.hidden_size * config.classes
    if "replaced_token" in config.heads_on_top:
        total += 2 * source * config.hidden_size * (config.hidden_size + 1)
    for size, layer in zip(config.sentence_sizes, config.sentence_layers, strict=False):
        total += 2 * size * layer.size
    total += 2 * source * config.embedding_size * config.hidden_size  # the projection
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
