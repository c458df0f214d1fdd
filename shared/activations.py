"""From a configuration to every named value of a forward pass, in the order of the computation.

The counterpart of the schema for what flows instead of what is stored: every implementation shows these values, and
no others, to a probe. A name is the attribute path of the module that computes the value and the name of the value.
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


OUTPUT = "output"  # what ``encode`` returns
DECODED = "decoded"  # what the decoder makes of it


@cache
def activations(config: ModelConfig) -> Mapping[str, Activation]:
    """Every named value of ``config`` by name, in the order of the computation."""
    return {activation.name: activation for activation in _model(config)}


def _model(config: ModelConfig) -> Iterator[Activation]:
    if config.source_vocabulary:
        yield from _embeddings("embeddings", "source", config)
    for layer in range(config.layers):
        yield from _attention_block(f"encoder.layers.{layer}", "attention", "source", "source", config)
        yield from _feed_forward_block(f"encoder.layers.{layer}", "source", config)
    yield from _process("encoder.final", config.final_process, "source")
    # Zero at padding tokens by definition, so there the padding is judged as well.
    yield Activation(OUTPUT, ("batch", "position", "hidden"))
    if config.kind == "encoder_decoder":
        yield from _embeddings("target_embeddings", "target", config)
        for layer in range(config.decoder_layers):
            yield from _decoder_layer(f"decoder.layers.{layer}", config)
        yield from _process("decoder.final", config.final_process, "target")
        yield Activation(DECODED, ("batch", "position", "hidden"))
    yield from _heads(config)


def _embeddings(path: str, tokens: str, config: ModelConfig) -> Iterator[Activation]:
    yield Activation(f"{path}.sum", ("batch", tokens, "hidden"))
    yield from _process(f"{path}.process", config.embedding_process, tokens)


def _decoder_layer(path: str, config: ModelConfig) -> Iterator[Activation]:
    yield from _attention_block(path, "self_attention", "target", "target", config)
    yield from _attention_block(path, "cross_attention", "target", "source", config)
    yield from _feed_forward_block(path, "target", config)


def _attention_block(path: str, name: str, queries: str, keys: str, config: ModelConfig) -> Iterator[Activation]:
    yield from _process(f"{path}.pre_{name}", config.pre_process, queries)
    if name == "cross_attention" and config.normalize_memory:
        yield from _process(f"{path}.memory", config.pre_process, keys)
    yield Activation(f"{path}.{name}.query", ("batch", "head", queries, "key"))
    yield Activation(f"{path}.{name}.key", ("batch", "head", keys, "key"))
    yield Activation(f"{path}.{name}.value", ("batch", "head", keys, "value"))
    yield Activation(f"{path}.{name}.scores", ("batch", "head", queries, keys))
    # The weight of a padding token is defined too: no source is exempt from being judged.
    yield Activation(f"{path}.{name}.weights", ("batch", "head", queries, "position"))
    yield Activation(f"{path}.{name}.context", ("batch", queries, "heads*value"))
    yield Activation(f"{path}.{name}.output", ("batch", queries, "hidden"))
    yield from _process(f"{path}.post_{name}", config.post_process, queries)


def _feed_forward_block(path: str, tokens: str, config: ModelConfig) -> Iterator[Activation]:
    yield from _process(f"{path}.pre_feed_forward", config.pre_process, tokens)
    for name in ("inner", "activation"):
        yield Activation(f"{path}.feed_forward.{name}", ("batch", tokens, "feed_forward"))
    yield Activation(f"{path}.feed_forward.output", ("batch", tokens, "hidden"))
    yield from _process(f"{path}.post_feed_forward", config.post_process, tokens)


def _heads(config: ModelConfig) -> Iterator[Activation]:
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


def _process(path: str, commands: str, tokens: str) -> Iterator[Activation]:
    for command in commands:
        if command == "a":
            yield Activation(f"{path}.residual", ("batch", tokens, "hidden"))
        elif command == "n":
            yield Activation(f"{path}.norm", ("batch", tokens, "hidden"))
