"""Varied weights: what a decoder generates depends on the source, on all tokens before and on their order.

Random weights generate monotonous sentences: one token that repeats, or an early end. In such a sentence, most bugs in
decoding change no token. So the weights are scaled to let attention influence the next token as much as the last token
does. They are drawn again, a few times at most, until the reference generates sentences of many different tokens, some
of which end.
"""

from collections.abc import Mapping

import numpy as np

from triglot import impls
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import PairBatch, random_batch, sources_to_generate_from
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import parameters

# Loud weights are multiplied by these numbers. Without them, the last token alone decides the next one.
_TOKENS = 2.0
_ATTENTION = 3.0  # the queries of self-attention, and the values and outputs of both attentions
_BIASES = 0.1
_ENDS = (3.0, 2.0, 4.0, 1.5)  # the scores of the end id: one after the other until some sentences end
_DRAWS = 4

_ROWS, _LENGTH = 16, 24  # of a trial generation
_LEAST_ENDED = 5  # sentences that end, and that do not
_LEAST_TOKENS = 4.0  # different ones in a sentence, on average


def varied_tensors(config: ModelConfig, loud: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Return varied weights of ``config``, a model that generates: the first whose trial generation is good enough.

    ``loud``: the loud weights. Each further draw shifts their rows by one more place. If no trial generation is good
    enough, the weights of the best one are returned.
    """
    best: tuple[float, dict[str, Array]] | None = None
    for draw in range(_DRAWS):
        drawn = {name: np.roll(tensor, draw, axis=0) for name, tensor in loud.items()}
        for factor in _ENDS:
            tensors = _varied(config, drawn, factor)
            quality = _quality(Checkpoint(config, tensors), seed)
            if best is None or quality > best[0]:
                best = quality, tensors
            if quality >= 1:
                return tensors
    assert best is not None
    return best[1]


def _varied(config: ModelConfig, loud: Mapping[str, Array], factor_of_end: float) -> dict[str, Array]:
    roles = {name: parameter.role for name, parameter in parameters(config).items()}
    tensors: dict[str, Array] = {}
    for name, tensor in loud.items():
        factor = np.ones(tensor.shape[-1], np.float32)
        if name.endswith("token.weight"):
            factor[:] = _TOKENS
        if name.startswith("decoder.") and roles[name] == "linear_weight" and _is_amplified(name):
            factor[:] = _ATTENTION
        if roles[name] == "bias":
            factor[:] = _BIASES
        if name.startswith("heads."):
            factor[config.end_id] *= factor_of_end
        tensors[name] = tensor * factor
    return tensors


def _is_amplified(name: str) -> bool:
    return ".self_attention.query." in name or "attention.value." in name or "attention.output." in name


def _quality(checkpoint: Checkpoint, seed: int) -> float:
    """Return how varied the sentences of a trial generation are; 1 is enough."""
    config = checkpoint.config
    longest = config.source_max_length
    lengths = [1 + row * (longest - 1) // (_ROWS - 1) for row in range(_ROWS)]
    batch = random_batch(config, lengths, np.random.default_rng([seed, 7]))
    assert isinstance(batch, PairBatch)
    length = min(_LENGTH, config.target_max_length)
    model = impls.build(impls.REFERENCE, checkpoint, dtype="float64")
    ids = model.generate(sources_to_generate_from(batch), length, cached=True)
    ended = int((ids == config.end_id).any(axis=1).sum())
    tokens = float(np.mean([np.unique(row).size for row in ids]))
    return min(1.0, min(ended, _ROWS - ended) / _LEAST_ENDED, tokens / _LEAST_TOKENS)
