"""The schema: everything in a model that has a canonical name. Every implementation has exactly these, in this order.

Parameters are what a model stores. Named values are what it shows to a probe, and dropouts are what training drops. A
name is the attribute path of the parameter, or of the module that computes the value and the name of the value.
Initializers, strict loading, porting, inspection and the parity checks all read this list.

Linear weights are (in, out) in every framework. Query, key and value are separate, and each head is a contiguous block
of the out axis.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from triglot.shared.arrays import FLOATS, Array
from triglot.shared.errors import CheckpointError

from .config import DECODER_HEADS, ModelConfig

Role = Literal["embedding", "linear_weight", "bias", "scale"]

TOKEN_TABLE = "embeddings.token.weight"
MASKED_LM_TABLE = "heads.masked_lm.decoder.weight"
SHOWN_PROBLEMS = 8  # in an error message
FEWEST_OF_A_LAYER = 6  # tensors of a layer without norms and biases: 4 projections, 2 linears

OUTPUT = "output"  # of the encoder, returned by ``encode``
DECODED = "decoded"  # the output of the decoder
ATTENDED = "attention.output"  # the output of a model that is attention alone, returned by ``attend``
AVERAGED = "averaged"  # the weights of such a model, averaged over the heads


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


@dataclass(frozen=True)
class NamedValue:
    """A named value and its axes: batch, source and target (the tokens of either), and others.

    Padding occurs along the axes ``source`` and ``target``. Values at padding tokens are not judged.
    """

    name: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Dropout:
    """A value of which training drops the share ``rate``. Axes as in ``NamedValue``.

    Dropouts are where each article has them; ``shared/training/dropout_masks.py`` draws their masks.
    """

    name: str
    axes: tuple[str, ...]
    rate: float


Entries = Iterator[Parameter | NamedValue | Dropout]


def parameters(config: ModelConfig) -> dict[str, Parameter]:
    """Return every parameter of ``config`` by canonical name, in the order of the computation."""
    return {entry.name: entry for entry in _model(config) if isinstance(entry, Parameter)}


@cache
def named_values(config: ModelConfig) -> Mapping[str, NamedValue]:
    """Return every named value of ``config`` by name, in the order of the computation."""
    return {entry.name: entry for entry in _model(config) if isinstance(entry, NamedValue)}


@cache
def dropouts(config: ModelConfig) -> Mapping[str, Dropout]:
    """Return every dropout of ``config`` with a rate above 0, by name, in the order of the computation."""
    return {entry.name: entry for entry in _model(config) if isinstance(entry, Dropout) and entry.rate}


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
        raise CheckpointError(
            f"{len(tensors)} tensors cannot hold {layers} layers; correct layers in the configuration"
        )
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
        if len(problems) > SHOWN_PROBLEMS:
            problems[SHOWN_PROBLEMS:] = [f"and {len(problems) - SHOWN_PROBLEMS} more"]
        raise CheckpointError(
            f"the tensors do not match the configuration: {'; '.join(problems)}; "
            "give the tensors that the configuration describes, or the configuration of these tensors"
        )


def _model(config: ModelConfig) -> Entries:
    if config.kind == "attention":
        yield from _attention("attention", "target", "source", config)
        yield NamedValue(AVERAGED, ("batch", "target", "position"))
        return
    if config.source_vocabulary:
        yield from _embeddings("embeddings", "source", config)
    for layer in range(config.layers):
        yield from _attention_block(f"encoder.layers.{layer}", "attention", "source", "source", config)
        yield from _feed_forward_block(f"encoder.layers.{layer}", "source", config)
    yield from _final_process("encoder.final", "source", config)
    # Zero at padding tokens by definition, so there the padding is judged as well.
    yield NamedValue(OUTPUT, ("batch", "position", "hidden"))
    if config.kind == "encoder_decoder":
        if config.target_vocabulary:
            yield from _embeddings("target_embeddings", "target", config)
        for layer in range(config.decoder_layers):
            yield from _attention_block(f"decoder.layers.{layer}", "self_attention", "target", "target", config)
            yield from _attention_block(f"decoder.layers.{layer}", "cross_attention", "target", "source", config)
            yield from _feed_forward_block(f"decoder.layers.{layer}", "target", config)
        yield from _final_process("decoder.final", "target", config)
        yield NamedValue(DECODED, ("batch", "position", "hidden"))
    yield from _heads(config)


def _embeddings(path: str, tokens: Literal["source", "target"], config: ModelConfig) -> Entries:
    is_stored = tokens == "source" or not config.shared_embeddings
    if is_stored:
        yield _table(f"{path}.token.weight", ("vocabulary", getattr(config, f"{tokens}_vocabulary")), config)
        if config.positions == "learned":
            rows = config.position_offset + getattr(config, f"{tokens}_max_length")
            yield _table(f"{path}.position.weight", ("position", rows), config)
        if config.segments:
            yield _table(f"{path}.segment.weight", ("segment", config.segments), config)
        if config.tasks:
            yield _table(f"{path}.task.weight", ("task", config.tasks), config)
    embedding = _embedding_axis(config)
    yield NamedValue(f"{path}.sum", ("batch", tokens, embedding[0]))
    rate = config.embedding_dropout
    process = _process(f"{path}.process", config.embedding_process, tokens, config, rate, embedding)
    yield from process if is_stored else _without_parameters(process)
    if config.embedding_size:
        yield from _linear(f"{path}.projection", embedding, ("hidden", config.hidden_size))
        yield NamedValue(f"{path}.projection", ("batch", tokens, "hidden"))


def _attention_block(path: str, name: str, queries: str, keys: str, config: ModelConfig) -> Entries:
    yield from _process(f"{path}.pre_{name}", config.pre_process, queries, config)
    if name == "cross_attention" and config.normalize_memory:  # by the norm of the queries
        yield from _without_parameters(_process(f"{path}.memory", config.pre_process, keys, config))
    yield from _attention(f"{path}.{name}", queries, keys, config)
    yield from _process(f"{path}.post_{name}", config.post_process, queries, config)


def _attention(path: str, queries: str, keys: str, config: ModelConfig) -> Entries:
    hidden = ("hidden", config.hidden_size)
    key_size = ("heads*key", config.heads * config.key_size)
    value_size = ("heads*value", config.heads * config.value_size)
    for name, size in (("query", key_size), ("key", key_size), ("value", value_size)):
        yield from _linear(f"{path}.{name}", hidden, size, bias=config.projection_bias)
    yield from _linear(f"{path}.output", value_size, hidden, bias=config.output_bias)
    yield NamedValue(f"{path}.key", ("batch", "head", keys, "key"))
    yield NamedValue(f"{path}.value", ("batch", "head", keys, "value"))
    yield NamedValue(f"{path}.query", ("batch", "head", queries, "key"))
    yield NamedValue(f"{path}.scores", ("batch", "head", queries, keys))
    # The weight of a padding token is defined too: no source is exempt from being judged.
    yield NamedValue(f"{path}.weights", ("batch", "head", queries, "position"))
    yield Dropout(f"{path}.dropout", ("batch", "head", queries, keys), config.attention_dropout)
    yield NamedValue(f"{path}.context", ("batch", queries, "heads*value"))
    yield NamedValue(f"{path}.output", ("batch", queries, "hidden"))
    yield Dropout(f"{path}.output_dropout", ("batch", queries, "hidden"), config.attention_output_dropout)


def _feed_forward_block(path: str, tokens: str, config: ModelConfig) -> Entries:
    hidden, inner = ("hidden", config.hidden_size), ("feed_forward", config.feed_forward_size)
    yield from _process(f"{path}.pre_feed_forward", config.pre_process, tokens, config)
    yield from _linear(f"{path}.feed_forward.inner", hidden, inner, bias=config.feed_forward_bias)
    yield from _linear(f"{path}.feed_forward.output", inner, hidden, bias=config.feed_forward_bias)
    yield NamedValue(f"{path}.feed_forward.inner", ("batch", tokens, "feed_forward"))
    yield NamedValue(f"{path}.feed_forward.activation", ("batch", tokens, "feed_forward"))
    yield Dropout(f"{path}.feed_forward.dropout", ("batch", tokens, "feed_forward"), config.feed_forward_dropout)
    yield NamedValue(f"{path}.feed_forward.output", ("batch", tokens, "hidden"))
    output_dropout = config.feed_forward_output_dropout
    yield Dropout(f"{path}.feed_forward.output_dropout", ("batch", tokens, "hidden"), output_dropout)
    yield from _process(f"{path}.post_feed_forward", config.post_process, tokens, config)


def _heads(config: ModelConfig) -> Entries:
    hidden, vocabulary = ("hidden", config.hidden_size), ("vocabulary", config.source_vocabulary)
    embedding, classes = _embedding_axis(config), ("class", config.classes)
    for head in DECODER_HEADS:
        if head in config.heads_on_top:
            yield from _linear(f"heads.{head}", hidden, ("target_vocabulary", config.target_vocabulary))
            # Zero at padding tokens, like the output.
            yield NamedValue(f"heads.{head}", ("batch", "position", "target_vocabulary"))
    if "pooler" in config.heads_on_top:
        yield from _linear("heads.pooler", hidden, hidden)
        yield NamedValue("heads.pooler", ("batch", "hidden"))
    if "masked_lm" in config.heads_on_top:
        yield from _linear("heads.masked_lm.transform", hidden, embedding)
        yield from _norm("heads.masked_lm.norm", config, embedding)
        if not config.tied_embeddings:
            yield _table(MASKED_LM_TABLE, vocabulary, config)
        yield Parameter("heads.masked_lm.bias", (vocabulary[1],), (vocabulary[0],), "bias", embedding[1])
        for name in ("transform", "activation", "norm"):
            yield NamedValue(f"heads.masked_lm.{name}", ("batch", "source", embedding[0]))
        yield NamedValue("heads.masked_lm", ("batch", "position", "vocabulary"))
    if "next_sentence" in config.heads_on_top:
        yield from _linear("heads.next_sentence", hidden, ("relation", 2))
        yield NamedValue("heads.next_sentence", ("batch", "relation"))
    if "sequence_classifier" in config.heads_on_top:
        yield from _linear("heads.sequence_classifier", hidden, classes)
        yield NamedValue("heads.sequence_classifier", ("batch", "class"))
    if "token_classifier" in config.heads_on_top:
        yield from _linear("heads.token_classifier", hidden, classes)
        yield NamedValue("heads.token_classifier", ("batch", "position", "class"))
    if "replaced_token" in config.heads_on_top:
        yield from _linear("heads.replaced_token.transform", hidden, hidden)
        yield from _linear("heads.replaced_token.output", hidden, ("score", 1))
        for name in ("transform", "activation"):
            yield NamedValue(f"heads.replaced_token.{name}", ("batch", "source", "hidden"))
        yield NamedValue("heads.replaced_token", ("batch", "position"))
    if "sentence_embedding" in config.heads_on_top:
        yield from _sentence_embedding(config)


def _sentence_embedding(config: ModelConfig) -> Entries:
    path, sizes = "heads.sentence_embedding", config.sentence_sizes
    axes = ["hidden", *(f"dense.{number}" for number in range(len(config.sentence_layers)))]
    yield NamedValue(f"{path}.pooled", ("batch", axes[0]))
    for number, layer in enumerate(config.sentence_layers):
        source, target = (axes[number], sizes[number]), (axes[number + 1], sizes[number + 1])
        yield from _linear(f"{path}.dense.{number}.linear", source, target, bias=layer.bias)
        yield NamedValue(f"{path}.dense.{number}.linear", ("batch", target[0]))
        yield NamedValue(f"{path}.dense.{number}.activation", ("batch", target[0]))
    yield NamedValue(path, ("batch", axes[-1]))


def _process(
    path: str,
    commands: str,
    tokens: str,
    config: ModelConfig,
    rate: float | None = None,
    features: tuple[str, int] | None = None,
    *,
    norm_bias: bool | None = None,
) -> Entries:
    features = features or ("hidden", config.hidden_size)
    axes = ("batch", tokens, features[0])
    for place, command in enumerate(commands):
        if command == "a":
            yield NamedValue(f"{path}.residual", axes)
        elif command == "n":
            yield from _norm(f"{path}.norm", config, features, bias=norm_bias)
            yield NamedValue(f"{path}.norm", axes)
        elif command == "d":
            yield Dropout(f"{path}.dropout.{place}", axes, config.residual_dropout if rate is None else rate)


def _final_process(path: str, tokens: str, config: ModelConfig) -> Entries:
    return _process(path, config.final_process, tokens, config, norm_bias=config.final_norm_bias)


def _without_parameters(entries: Entries) -> Entries:
    return (entry for entry in entries if not isinstance(entry, Parameter))


def _linear(path: str, source: tuple[str, int], target: tuple[str, int], *, bias: bool = True) -> Iterator[Parameter]:
    yield Parameter(f"{path}.weight", (source[1], target[1]), (source[0], target[0]), "linear_weight", source[1])
    if bias:
        yield Parameter(f"{path}.bias", (target[1],), (target[0],), "bias", source[1])


def _norm(
    path: str, config: ModelConfig, features: tuple[str, int], *, bias: bool | None = None
) -> Iterator[Parameter]:
    # Article 003 learns a single scale and bias instead of one for each dimension.
    shape, axes = ((features[1],), (features[0],)) if config.norm == "layer_norm" else ((1,), ("scalar",))
    yield Parameter(f"{path}.scale", shape, axes, "scale")
    if config.norm_bias if bias is None else bias:
        yield Parameter(f"{path}.bias", shape, axes, "bias")


def _table(name: str, axis: tuple[str, int], config: ModelConfig) -> Parameter:
    embedding = _embedding_axis(config)
    return Parameter(name, (axis[1], embedding[1]), (axis[0], embedding[0]), "embedding")


def _embedding_axis(config: ModelConfig) -> tuple[str, int]:
    return ("embedding" if config.embedding_size else "hidden", config.embedding_width)
