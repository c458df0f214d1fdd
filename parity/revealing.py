"""Revealing weights: a shallow model of the same configuration whose outputs show every bug inside it.

Trained weights hide bugs from the outputs: pre-activations are so small that an approximate GELU is exact enough, and
variances so large that a wrong epsilon does not matter. The public methods return only outputs, so they also run on
sets of weights that are drawn for this purpose:

``loud``         activations of about 1 everywhere, so that every nonlinear step bends them
``quiet``        the same, except that what each norm receives is about as small as epsilon
``extreme``      scores as large as the masking value, or of some hundred and far below zero, and a mean of many
                 deviations before each norm
``overflowing``  loud, except that the vectors of one token are the largest numbers of the format
``varied``       what a decoder generates depends on the source and on the tokens before, and some of it ends
                 (``varied.py``)
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from triglot.shared.arrays import FLOATS, HALVES, LARGEST_BFLOAT16, LARGEST_FLOAT16, Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import InputError
from triglot.shared.inputs import check_generates
from triglot.shared.model.config import DROPOUT_RATES, ModelConfig
from triglot.shared.model.schema import Parameter, parameters

from .varied import varied_tensors

Revealing = Literal["loud", "quiet", "extreme", "overflowing", "varied"]
# "perturbed" are the given ones, changed so that no norm and no bias is the identity.
Weights = Literal["given", "perturbed"] | Revealing

LAYERS = 2  # the first and the last: a layer between them runs the same code
VOCABULARY = 512  # a larger table would only take time

# Deviation of what a norm receives in a quiet model, in multiples of the deviation at which epsilon matters.
_QUIET = 3.0
# The least deviation in a quiet model: below it, 16-bit weights would lose their digits.
_LEAST_QUIET = {"float32": 0.0, "float64": 0.0, "bfloat16": 0.0, "float16": 2.0**-10}

# Deviation of the scores in an extreme model: exp overflows, but float16 does not.
_SCORES = 300.0
# If masked tokens are excluded, this number, divided by the root of the key size, is added to the biases of queries and
# subtracted from those of keys. If vectors are also normalised, all scores are so low that a mask of -10,000 would not
# exclude a token. In 16 bits, such scores would round to one number.
_LOW = 1000.0
_LARGEST_SCORES = 1e9
_LARGEST_FLOAT16_SCORES = 5e3
# The mean before each norm of an extreme model, in deviations. 16 bits would round a larger one to a few numbers.
_OFFSETS = {"float32": 256.0, "float64": 256.0, "bfloat16": 8.0, "float16": 32.0}


def revealing_checkpoints(config: ModelConfig, dtype: str, seed: int) -> dict[Revealing, Checkpoint]:
    """Return a model of ``config`` with each kind of revealing weights, rounded to ``dtype``.

    They have fewer layers and a smaller vocabulary where that saves time, and drop half of everything in training.
    """
    shallow = _shallow(config)
    roles = {name: parameter.role for name, parameter in parameters(shallow).items()}
    loud = {
        name: _draw(parameter, np.random.default_rng([seed, 3, *name.encode()]))
        for name, parameter in parameters(shallow).items()
    }
    shrunk = np.float32(quiet_scale(config, dtype))
    quiet = {name: tensor if roles[name] == "linear_weight" else tensor * shrunk for name, tensor in loud.items()}
    scores = min(max(_SCORES, abs(config.masking_value or 0.0)), _largest_scores(config, dtype))
    extreme = {name: tensor * np.float32(scores) if ".query." in name else tensor for name, tensor in loud.items()}
    for name, tensor in extreme.items():
        if roles[name] == "embedding" or name.endswith(("attention.output.bias", "feed_forward.output.bias")):
            extreme[name] = tensor + np.float32(offset(config, dtype))
    if config.masking == "exclude" and dtype not in HALVES:
        low = np.float32(_LOW / config.key_size**0.5)
        for name, tensor in extreme.items():
            if name.endswith(("query.bias", "key.bias")):
                extreme[name] = tensor + low if "query" in name else tensor - low
    overflowing = dict(loud)
    for name, tensor in loud.items():
        if name.endswith("token.weight"):
            overflowing[name] = tensor.astype(np.float64)
            overflowing[name][ordinary_ids(config)[:1]] = largest(dtype)
    sets: dict[Revealing, dict[str, Array]]
    sets = {"loud": loud, "quiet": quiet, "extreme": extreme, "overflowing": overflowing}
    if _generates(config):
        sets["varied"] = varied_tensors(shallow, loud, seed)
    return {name: _rounded(shallow, tensors, dtype) for name, tensors in sets.items()}


def _generates(config: ModelConfig) -> bool:
    try:
        check_generates(config)
    except InputError:
        return False
    return True


def _shallow(config: ModelConfig) -> ModelConfig:
    special = [identifier for identifier in (config.pad_id, config.start_id, config.end_id) if identifier is not None]
    ids = max(VOCABULARY, *(identifier + 1 for identifier in special), 0)
    return replace(
        config,
        layers=min(LAYERS, config.layers),
        decoder_layers=min(LAYERS, config.decoder_layers),
        source_vocabulary=min(ids, config.source_vocabulary),
        target_vocabulary=min(ids, config.target_vocabulary),
        **dict.fromkeys(DROPOUT_RATES, 0.5),
    )


def ordinary_ids(config: ModelConfig) -> tuple[int, ...]:
    """Return the first two tokens that are not special, or fewer if there are not so many."""
    special = (config.pad_id, config.start_id, config.end_id)
    vocabulary = min(config.source_vocabulary, config.target_vocabulary or config.source_vocabulary)
    return tuple(identifier for identifier in range(min(vocabulary, len(special) + 2)) if identifier not in special)[:2]


def largest(dtype: str) -> float:
    """Return the largest number of a format."""
    limits = {"float16": LARGEST_FLOAT16, "bfloat16": LARGEST_BFLOAT16}
    return float(limits[dtype] if dtype in limits else np.finfo(dtype).max)


def offset(config: ModelConfig, dtype: str) -> float:
    """Return the mean of what a norm receives in an extreme model; 0 if it has no norm."""
    return 0.0 if config.kind == "attention" else _OFFSETS[dtype]


def _largest_scores(config: ModelConfig, dtype: str) -> float:
    """Return the largest factor for the query weights of an extreme model that does not make it overflow."""
    if dtype != "float16":
        return _LARGEST_SCORES
    if config.kind == "attention" or _norms_before_projections(config):
        return _LARGEST_FLOAT16_SCORES
    # Queries and keys read the sum of the embeddings and of what each block before has added, all with an offset.
    embeddings = config.hidden_size**0.5 if config.embedding_scale else 1.0
    blocks = 2 * LAYERS if config.kind == "encoder" else 3 * LAYERS
    return _LARGEST_FLOAT16_SCORES / (offset(config, dtype) * (embeddings + blocks)) ** 2


def _norms_before_projections(config: ModelConfig) -> bool:
    """Return whether every query and key is a projection of normalised vectors."""
    after_each_block = config.post_process.endswith("n") and "n" in config.embedding_process
    memory = config.kind == "encoder" or config.normalize_memory or "n" in config.final_process
    return after_each_block or ("n" in config.pre_process and memory)


def quiet_scale(config: ModelConfig, dtype: str) -> float:
    """Return the deviation of what a norm receives in a quiet model."""
    added_to_deviation = config.norm == "scalar_layer_norm"
    deviation = config.norm_eps if added_to_deviation else config.norm_eps**0.5
    return max(_QUIET * deviation, _LEAST_QUIET[dtype])


def _draw(parameter: Parameter, generator: np.random.Generator) -> Array:
    drawn = generator.standard_normal(parameter.shape, np.float32)
    if parameter.role == "linear_weight":
        return drawn / np.float32(parameter.shape[0] ** 0.5)
    if parameter.role == "scale":
        return 1 + drawn / 4
    return drawn / 2 if parameter.role == "bias" else drawn


def _rounded(config: ModelConfig, tensors: Mapping[str, Array], dtype: str) -> Checkpoint:
    return Checkpoint(config, {name: tensor.astype(FLOATS[dtype]) for name, tensor in tensors.items()})
