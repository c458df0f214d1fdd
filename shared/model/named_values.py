"""From a configuration to every named value of a forward pass, in the order of the computation, and to every dropout.

The counterpart of the schema for what flows instead of what is stored: every implementation shows these values, and
no others, to a probe. A name is the attribute path of the module that computes the value and the name of the value.
The dropouts stand where each article has them; ``dropouts.py`` draws their masks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from .config import DECODER_HEADS, ModelConfig


@dataclass(frozen=True)
class Activation:
    """A named value. Axes: batch, source and target (the tokens of either), and anything else.

    ``source`` and ``target`` mark the axes on which padding occurs: what stands at a padding token is not judged.
    """

    name: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Dropout:
    """A value of which a share, ``rate``, is dropped in training. Axes as of an ``Activation``."""

    name: str
    axes: tuple[str, ...]
    rate: float


OUTPUT = "output"  # what ``encode`` returns
DECODED = "decoded"  # what the decoder makes of it
ATTENDED = "attention.output"  # what ``attend`` returns of a model that is attention alone,
AVERAGED = "averaged"  # and its weights, averaged over the heads


@cache
def activations(config: ModelConfig) -> Mapping[str, Activation]:
    """Every named value of ``config`` by name, in the order of the computation."""
    return {value.name: value for value in _model(config) if isinstance(value, Activation)}


@cache
def dropouts(config: ModelConfig) -> Mapping[str, Dropout]:
    """Every dropout of ``config`` that drops anything, by name, in the order of the computation."""
    return {value.name: value for value in _model(config) if isinstance(value, Dropout) and value.rate}


def _model(config: ModelConfig) -> Iterator[Activation | Dropout]:
    if config.kind == "attention":
        yield from _attention("attention", "target", "source", config)
        yield Activation(AVERAGED, ("batch", "target", "position"))
        return
    if config.source_vocabulary:
        yield from _embeddings("embeddings", "source", config)
    for layer in range(config.layers):
        yield from _attention_block(f"encoder.layers.{layer}", "attention", "source", "source", config)
        yield from _feed_forward_block(f"encoder.layers.{layer}", "source", config)
    yield from _process("encoder.final", config.final_process, "source", config.residual_dropout)
    # Zero at padding tokens by definition, so there the padding is judged as well.
    yield Activation(OUTPUT, ("batch", "position", "hidden"))
    if config.kind == "encoder_decoder":
        yield from _embeddings("target_embeddings", "target", config)
        for layer in range(config.decoder_layers):
            yield from _decoder_layer(f"decoder.layers.{layer}", config)
        yield from _process("decoder.final", config.final_process, "target", config.residual_dropout)
        yield Activation(DECODED, ("batch", "position", "hidden"))
    yield from _heads(config)


def _embeddings(path: str, tokens: str, config: ModelConfig) -> Iterator[Activation | Dropout]:
    yield Activation(f"{path}.sum", ("batch", tokens, "hidden"))
    yield from _process(f"{path}.process", config.embedding_process, tokens, config.embedding_dropout)


def _decoder_layer(path: str, config: ModelConfig) -> Iterator[Activation | Dropout]:
    yield from _attention_block(path, "self_attention", "target", "target", config)
    yield from _attention_block(path, "cross_attention", "target", "source", config)
    yield from _feed_forward_block(path, "target", config)


def _attention_block(
    path: str, name: str, queries: str, keys: str, config: ModelConfig
) -> Iterator[Activation | Dropout]:
    yield from _process(f"{path}.pre_{name}", config.pre_process, queries, config.residual_dropout)
    if name == "cross_attention" and config.normalize_memory:
        yield from _process(f"{path}.memory", config.pre_process, keys, config.residual_dropout)
    yield from _attention(f"{path}.{name}", queries, keys, config)
    yield from _process(f"{path}.post_{name}", config.post_process, queries, config.residual_dropout)


def _attention(path: str, queries: str, keys: str, config: ModelConfig) -> Iterator[Activation | Dropout]:
    yield Activation(f"{path}.key", ("batch", "head", keys, "key"))
    yield Activation(f"{path}.value", ("batch", "head", keys, "value"))
    yield Activation(f"{path}.query", ("batch", "head", queries, "key"))
    yield Activation(f"{path}.scores", ("batch", "head", queries, keys))
    # The weight of a padding token is defined too: no source is exempt from being judged.
    yield Activation(f"{path}.weights", ("batch", "head", queries, "position"))
    yield Dropout(f"{path}.dropout", ("batch", "head", queries, keys), config.attention_dropout)
    yield Activation(f"{path}.context", ("batch", queries, "heads*value"))
    yield Activation(f"{path}.output", ("batch", queries, "hidden"))
    yield Dropout(f"{path}.output_dropout", ("batch", queries, "hidden"), config.attention_output_dropout)


def _feed_forward_block(path: str, tokens: str, config: ModelConfig) -> Iterator[Activation | Dropout]:
    yield from _process(f"{path}.pre_feed_forward", config.pre_process, tokens, config.residual_dropout)
    for name in ("inner", "activation"):
        yield Activation(f"{path}.feed_forward.{name}", ("batch", tokens, "feed_forward"))
    yield Dropout(f"{path}.feed_forward.dropout", ("batch", tokens, "feed_forward"), config.feed_forward_dropout)
    yield Activation(f"{path}.feed_forward.output", ("batch", tokens, "hidden"))
    rate = config.feed_forward_output_dropout
    yield Dropout(f"{path}.feed_forward.output_dropout", ("batch", tokens, "hidden"), rate)
    yield from _process(f"{path}.post_feed_forward", config.post_process, tokens, config.residual_dropout)


def _heads(config: ModelConfig) -> Iterator[Activation | Dropout]:
    for head in DECODER_HEADS:
        if head in config.heads_on_top:
            # Zero at padding tokens, like the output.
            yield Activation(f"heads.{head}", ("batch", "position", "target_vocabulary"))
    if "pooler" in config.heads_on_top:
        yield Activation("heads.pooler", ("batch", "hidden"))
    if "masked_lm" in config.heads_on_top:
        for name in ("transform", "activation", "norm"):
            yield Activation(f"heads.masked_lm.{name}", ("batch", "source", "hidden"))
        yield Activation("heads.masked_lm", ("batch", "position", "vocabulary"))
    if "next_sentence" in config.heads_on_top:
        yield Activation("heads.next_sentence", ("batch", "relation"))


def _process(path: str, commands: str, tokens: str, rate: float) -> Iterator[Activation | Dropout]:
    for place, command in enumerate(commands):
        if command == "a":
            yield Activation(f"{path}.residual", ("batch", tokens, "hidden"))
        elif command == "n":
            yield Activation(f"{path}.norm", ("batch", tokens, "hidden"))
        elif command == "d":
            yield Dropout(f"{path}.dropout.{place}", ("batch", tokens, "hidden"), rate)
