"""The named values of a model: every intermediate result that it shows to a probe, and every dropout.

The schema lists what a model stores; this module lists what flows through it. Every implementation shows exactly these
values, in this order. A name is the attribute path of the module that computes the value, and the name of the value.
Dropouts are where each article has them; ``shared/training/dropout_masks.py`` draws their masks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from .config import DECODER_HEADS, ModelConfig


@dataclass(frozen=True)
class NamedValue:
    """A named value and its axes: batch, source and target (the tokens of either), and others.

    Padding occurs along the axes ``source`` and ``target``. Values at padding tokens are not judged.
    """

    name: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Dropout:
    """A value of which training drops the share ``rate``. Axes as in ``NamedValue``."""

    name: str
    axes: tuple[str, ...]
    rate: float


OUTPUT = "output"  # of the encoder, returned by ``encode``
DECODED = "decoded"  # the output of the decoder
ATTENDED = "attention.output"  # the output of a model that is attention alone, returned by ``attend``
AVERAGED = "averaged"  # the weights of such a model, averaged over the heads


@cache
def named_values(config: ModelConfig) -> Mapping[str, NamedValue]:
    """Return every named value of ``config`` by name, in the order of the computation."""
    return {value.name: value for value in _model(config) if isinstance(value, NamedValue)}


@cache
def dropouts(config: ModelConfig) -> Mapping[str, Dropout]:
    """Return every dropout of ``config`` with a rate above 0, by name, in the order of the computation."""
    return {value.name: value for value in _model(config) if isinstance(value, Dropout) and value.rate}


def _model(config: ModelConfig) -> Iterator[NamedValue | Dropout]:
    if config.kind == "attention":
        yield from _attention("attention", "target", "source", config)
        yield NamedValue(AVERAGED, ("batch", "target", "position"))
        return
    if config.source_vocabulary:
        yield from _embeddings("embeddings", "source", config)
    for layer in range(config.layers):
        yield from _attention_block(f"encoder.layers.{layer}", "attention", "source", "source", config)
        yield from _feed_forward_block(f"encoder.layers.{layer}", "source", config)
    yield from _process("encoder.final", config.final_process, "source", config.residual_dropout)
    # Zero at padding tokens by definition, so there the padding is judged as well.
    yield NamedValue(OUTPUT, ("batch", "position", "hidden"))
    if config.kind == "encoder_decoder":
        yield from _embeddings("target_embeddings", "target", config)
        for layer in range(config.decoder_layers):
            yield from _attention_block(f"decoder.layers.{layer}", "self_attention", "target", "target", config)
            yield from _attention_block(f"decoder.layers.{layer}", "cross_attention", "target", "source", config)
            yield from _feed_forward_block(f"decoder.layers.{layer}", "target", config)
        yield from _process("decoder.final", config.final_process, "target", config.residual_dropout)
        yield NamedValue(DECODED, ("batch", "position", "hidden"))
    yield from _heads(config)


def _embeddings(path: str, tokens: str, config: ModelConfig) -> Iterator[NamedValue | Dropout]:
    yield NamedValue(f"{path}.sum", ("batch", tokens, "hidden"))
    yield from _process(f"{path}.process", config.embedding_process, tokens, config.embedding_dropout)


def _attention_block(
    path: str, name: str, queries: str, keys: str, config: ModelConfig
) -> Iterator[NamedValue | Dropout]:
    yield from _process(f"{path}.pre_{name}", config.pre_process, queries, config.residual_dropout)
    if name == "cross_attention" and config.normalize_memory:
        yield from _process(f"{path}.memory", config.pre_process, keys, config.residual_dropout)
    yield from _attention(f"{path}.{name}", queries, keys, config)
    yield from _process(f"{path}.post_{name}", config.post_process, queries, config.residual_dropout)


def _attention(path: str, queries: str, keys: str, config: ModelConfig) -> Iterator[NamedValue | Dropout]:
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


def _feed_forward_block(path: str, tokens: str, config: ModelConfig) -> Iterator[NamedValue | Dropout]:
    yield from _process(f"{path}.pre_feed_forward", config.pre_process, tokens, config.residual_dropout)
    for name in ("inner", "activation"):
        yield NamedValue(f"{path}.feed_forward.{name}", ("batch", tokens, "feed_forward"))
    yield Dropout(f"{path}.feed_forward.dropout", ("batch", tokens, "feed_forward"), config.feed_forward_dropout)
    hidden = ("batch", tokens, "hidden")
    yield NamedValue(f"{path}.feed_forward.output", hidden)
    yield Dropout(f"{path}.feed_forward.output_dropout", hidden, config.feed_forward_output_dropout)
    yield from _process(f"{path}.post_feed_forward", config.post_process, tokens, config.residual_dropout)


def _heads(config: ModelConfig) -> Iterator[NamedValue | Dropout]:
    for head in DECODER_HEADS:
        if head in config.heads_on_top:
            # Zero at padding tokens, like the output.
            yield NamedValue(f"heads.{head}", ("batch", "position", "target_vocabulary"))
    if "pooler" in config.heads_on_top:
        yield NamedValue("heads.pooler", ("batch", "hidden"))
    if "masked_lm" in config.heads_on_top:
        for name in ("transform", "activation", "norm"):
            yield NamedValue(f"heads.masked_lm.{name}", ("batch", "source", "hidden"))
        yield NamedValue("heads.masked_lm", ("batch", "position", "vocabulary"))
    if "next_sentence" in config.heads_on_top:
        yield NamedValue("heads.next_sentence", ("batch", "relation"))


def _process(path: str, commands: str, tokens: str, rate: float) -> Iterator[NamedValue | Dropout]:
    axes = ("batch", tokens, "hidden")
    for place, command in enumerate(commands):
        if command == "d":
            yield Dropout(f"{path}.dropout.{place}", axes, rate)
        else:
            yield NamedValue(f"{path}.residual" if command == "a" else f"{path}.norm", axes)
