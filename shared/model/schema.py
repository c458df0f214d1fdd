"""The schema: every parameter of a configuration, with its canonical name, shape, named axes and role.

A name is the attribute path of the parameter in every implementation. Linear weights are (in, out) in every framework.
Query, key and value are separate, and each head is a contiguous block of the out axis. Initializers, strict loading,
porting and inspection all read this list.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from triglot.shared.arrays import Array
from triglot.shared.dtypes import FLOATS
from triglot.shared.errors import CheckpointError

from .config import DECODER_HEADS, ModelConfig

Role = Literal["embedding", "linear_weight", "bias", "scale"]

TOKEN_TABLE = "embeddings.token.weight"
FEWEST_OF_A_LAYER = 8  # tensors of a layer without norms and optional biases: 4 projections, 2 linears with a bias
MASKED_LM_TABLE = "heads.masked_lm.decoder.weight"


@dataclass(frozen=True)
class Parameter:
    """A parameter: its name, its ``shape``, and one axis name for each dimension.

    ``role`` decides how it is initialised, and whether a framework that stores linear weights as (out, in) transposes
    it. That is never guessed from the shape, because a square weight has the same shape either way. ``fan_in`` is the
    number of inputs of the linear layer that a weight or bias belongs to, and 0 for tables and norms; some initializers
    need it.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    role: Role
    fan_in: int = 0


def parameters(config: ModelConfig) -> dict[str, Parameter]:
    """Return every parameter of ``config`` by canonical name, in the order of the computation."""
    return {parameter.name: parameter for parameter in _model(config)}


def aliases(config: ModelConfig) -> dict[str, str]:
    """Return further names of tied parameters: alias -> canonical name. Only the canonical one is stored."""
    return {MASKED_LM_TABLE: TOKEN_TABLE} if config.tied_embeddings else {}


def verify(config: ModelConfig, tensors: Mapping[str, Array]) -> None:
    """Compare ``tensors`` with the schema: names in both directions, shapes and dtypes.

    Raises:
        CheckpointError: the one message lists every missing or unexpected tensor and every wrong shape or dtype.
    """
    layers = config.layers + config.decoder_layers
    if layers > len(tensors):  # refused before that many names are generated
        raise CheckpointError(f"{len(tensors)} tensors cannot be the {layers} layers of the configuration")
    expected = parameters(config)
    problems = [f"missing {name} {expected[name].shape}" for name in expected if name not in tensors]
    problems += [f"unexpected {name}" for name in tensors if name not in expected]
    for name, tensor in tensors.items():
        if name not in expected:
            continue
        if not isinstance(tensor, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]
            problems.append(f"{name} is a {type(tensor).__name__}, expected a NumPy array")
            continue
        if tensor.shape != expected[name].shape:
            problems.append(f"{name} has shape {tensor.shape}, expected {expected[name].shape}")
        if tensor.dtype not in FLOATS.values():
            problems.append(f"{name} has dtype {tensor.dtype}, expected one of {', '.join(FLOATS)}")
    if problems:
        raise CheckpointError(
            f"the tensors do not match the configuration: {'; '.join(problems)}; "
            "give the tensors that the configuration describes, or the configuration of these tensors"
        )


def _model(config: ModelConfig) -> Iterator[Parameter]:
    if config.source_vocabulary:
        yield from _embeddings("embeddings", config.source_vocabulary, config.source_max_length, config)
    if config.kind == "attention":
        yield from _attention("attention", config)
    yield from _layers("encoder", config.layers, ("attention",), config)
    if config.kind == "encoder_decoder":
        if not config.shared_embeddings:
            yield from _embeddings("target_embeddings", config.target_vocabulary, config.target_max_length, config)
        yield from _layers("decoder", config.decoder_layers, ("self_attention", "cross_attention"), config)
    yield from _heads(config)


def _embeddings(path: str, vocabulary: int, max_length: int, config: ModelConfig) -> Iterator[Parameter]:
    yield _table(f"{path}.token.weight", ("vocabulary", vocabulary), config)
    if config.positions == "learned":
        yield _table(f"{path}.position.weight", ("position", config.position_offset + max_length), config)
    if config.segments:
        yield _table(f"{path}.segment.weight", ("segment", config.segments), config)
    if config.tasks:
        yield _table(f"{path}.task.weight", ("task", config.tasks), config)
    yield from _process(f"{path}.process", config.embedding_process, config)


def _layers(stack: str, count: int, attentions: tuple[str, ...], config: ModelConfig) -> Iterator[Parameter]:
    hidden, inner = ("hidden", config.hidden_size), ("feed_forward", config.feed_forward_size)
    for layer in range(count):
        path = f"{stack}.layers.{layer}"
        for name in attentions:
            yield from _process(f"{path}.pre_{name}", config.pre_process, config)
            yield from _attention(f"{path}.{name}", config)
            yield from _process(f"{path}.post_{name}", config.post_process, config)
        yield from _process(f"{path}.pre_feed_forward", config.pre_process, config)
        yield from _linear(f"{path}.feed_forward.inner", hidden, inner)
        yield from _linear(f"{path}.feed_forward.output", inner, hidden)
        yield from _process(f"{path}.post_feed_forward", config.post_process, config)
    yield from _process(f"{stack}.final", config.final_process, config)


def _attention(path: str, config: ModelConfig) -> Iterator[Parameter]:
    hidden = ("hidden", config.hidden_size)
    keys, values = ("heads*key", config.heads * config.key_size), ("heads*value", config.heads * config.value_size)
    for name, size in (("query", keys), ("key", keys), ("value", values)):
        yield from _linear(f"{path}.{name}", hidden, size, bias=config.projection_bias)
    yield from _linear(f"{path}.output", values, hidden, bias=config.output_bias)


def _heads(config: ModelConfig) -> Iterator[Parameter]:
    hidden, vocabulary = ("hidden", config.hidden_size), ("vocabulary", config.source_vocabulary)
    for head in DECODER_HEADS:
        if head in config.heads_on_top:
            yield from _linear(f"heads.{head}", hidden, ("target_vocabulary", config.target_vocabulary))
    if "pooler" in config.heads_on_top:
        yield from _linear("heads.pooler", hidden, hidden)
    if "masked_lm" in config.heads_on_top:
        yield from _linear("heads.masked_lm.transform", hidden, hidden)
        yield from _norm("heads.masked_lm.norm", config)
        if not config.tied_embeddings:
            yield _table(MASKED_LM_TABLE, vocabulary, config)
        yield Parameter("heads.masked_lm.bias", (vocabulary[1],), (vocabulary[0],), "bias", hidden[1])
    if "next_sentence" in config.heads_on_top:
        yield from _linear("heads.next_sentence", hidden, ("relation", 2))


def _linear(path: str, source: tuple[str, int], target: tuple[str, int], *, bias: bool = True) -> Iterator[Parameter]:
    yield Parameter(f"{path}.weight", (source[1], target[1]), (source[0], target[0]), "linear_weight", source[1])
    if bias:
        yield Parameter(f"{path}.bias", (target[1],), (target[0],), "bias", source[1])


def _process(path: str, commands: str, config: ModelConfig) -> Iterator[Parameter]:
    if "n" in commands:
        yield from _norm(f"{path}.norm", config)


def _norm(path: str, config: ModelConfig) -> Iterator[Parameter]:
    # Article 003 learns a single scale and bias instead of one for each dimension.
    shape, axes = ((config.hidden_size,), ("hidden",)) if config.norm == "layer_norm" else ((1,), ("scalar",))
    yield Parameter(f"{path}.scale", shape, axes, "scale")
    yield Parameter(f"{path}.bias", shape, axes, "bias")


def _table(name: str, axis: tuple[str, int], config: ModelConfig) -> Parameter:
    return Parameter(name, (axis[1], config.hidden_size), (axis[0], "hidden"), "embedding")
