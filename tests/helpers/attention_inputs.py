"""Vectors, biases and masks for attention alone."""

from typing import Any

import numpy as np

from triglot.shared.model.recipes import recipe

CONFIG = recipe("multihead-tiny")  # 3 heads of 8; at most 29 queries and 37 keys
ROWS, HEADS, TARGETS, SOURCES, WIDTH = 4, 3, 5, 7, 24


def vectors(targets=TARGETS, sources=SOURCES, seed=0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    lengths = {"query": targets, "key": sources, "value": sources}
    return {name: generator.standard_normal((ROWS, n, WIDTH)).astype(np.float32) for name, n in lengths.items()}


def bias_of(shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def with_infinities(shape):
    """Return a bias that forbids about a third of the keys, but never the first."""
    bias = bias_of(shape)
    bias[np.random.default_rng(2).random(shape) < 1 / 3] = -np.inf
    bias[..., 0] = 0.5
    return bias


KEY_VALID = np.arange(SOURCES) < np.array([7, 4, 1, 6])[:, None]
SQUARE = TARGETS, SOURCES
MASKS: dict[str, dict[str, Any]] = {
    "no mask": {},
    "key padding": {"key_valid": KEY_VALID},
    "one bias for all": {"bias": bias_of(SQUARE)},
    "a bias for each head and row": {"bias": bias_of((ROWS * HEADS, *SQUARE))},
    "a bias of four dimensions": {"bias": bias_of((ROWS, HEADS, *SQUARE))},
    "minus infinity for all": {"bias": with_infinities(SQUARE)},
    "minus infinity for each head": {"bias": with_infinities((ROWS * HEADS, *SQUARE))},
    "minus infinity in four dimensions": {"bias": with_infinities((ROWS, HEADS, *SQUARE))},
    "both": {"key_valid": KEY_VALID, "bias": with_infinities((ROWS * HEADS, *SQUARE))},
}
