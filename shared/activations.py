"""From a configuration to every named value of a forward pass, in the order of the computation.

The counterpart of the schema for what flows instead of what is stored: every implementation shows these values, and
no others, to a probe. A name is the attribute path of the module that computes the value and the name of the value.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from .config import ModelConfig


@dataclass(frozen=True)
class Activation:
    """A named value. Axes: batch, target and source (both run over the tokens), and anything else.

    ``target`` and ``source`` mark the axes on which padding occurs: what stands at a padding token is not judged.
    """

    name: str
    axes: tuple[str, ...]


OUTPUT = "output"  # what ``encode`` returns

_HIDDEN = ("batch", "target", "hidden")


@cache
def activations(config: ModelConfig) -> Mapping[str, Activation]:
    """Every named value of ``config`` by name, in the order of the computation."""
    return {activation.name: activation for activation in _model(config)}


def _model(config: ModelConfig) -> Iterator[Activation]:
    if config.source_vocabulary:
        yield Activation("embeddings.sum", _HIDDEN)
        yield from _process("embeddings.process", config.embedding_process)
    for layer in range(config.layers):
        yield from _encoder_layer(f"encoder.layers.{layer}", config)
    yield from _process("encoder.final", config.final_process)
    # Zero at padding tokens by definition, so there the padding is judged as well.
    yield Activation(OUTPUT, ("batch", "position", "hidden"))
    yield from _heads(config)


def _encoder_layer(path: str, config: ModelConfig) -> Iterator[Activation]:
    yield from _process(f"{path}.pre_attention", config.pre_process)
    for name, token in (("query", "target"), ("key", "source"), ("value", "source")):
        yield Activation(f"{path}.attention.{name}", ("batch", "head", token, "value" if name == "value" else "key"))
    yield Activation(f"{path}.attention.scores", ("batch", "head", "target", "source"))
    # The weight of a padding token is defined too: no source is exempt from being judged.
    yield Activation(f"{path}.attention.weights", ("batch", "head", "target", "position"))
    yield Activation(f"{path}.attention.context", ("batch", "target", "heads*value"))
    yield Activation(f"{path}.attention.output", _HIDDEN)
    yield from _process(f"{path}.post_attention", config.post_process)
    yield from _process(f"{path}.pre_feed_forward", config.pre_process)
    for name in ("inner", "activation"):
        yield Activation(f"{path}.feed_forward.{name}", ("batch", "target", "feed_forward"))
    yield Activation(f"{path}.feed_forward.output", _HIDDEN)
    yield from _process(f"{path}.post_feed_forward", config.post_process)


def _heads(config: ModelConfig) -> Iterator[Activation]:
    if "pooler" in config.heads_on_top:
        yield Activation("heads.pooler", ("batch", "hidden"))
    if "masked_lm" in config.heads_on_top:
        for name in ("transform", "activation", "norm"):
            yield Activation(f"heads.masked_lm.{name}", _HIDDEN)
        # Zero at padding tokens, like the output.
        yield Activation("heads.masked_lm", ("batch", "position", "vocabulary"))
    if "next_sentence" in config.heads_on_top:
        yield Activation("heads.next_sentence", ("batch", "relation"))


def _process(path: str, commands: str) -> Iterator[Activation]:
    for command in commands:
        if command == "a":
            yield Activation(f"{path}.residual", _HIDDEN)
        elif command == "n":
            yield Activation(f"{path}.norm", _HIDDEN)
