"""Choose the heads of an encoder to keep, and leave out the others."""

from collections.abc import Collection
from dataclasses import replace

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.checkpoint.checksums import DeferredTensors, without_verifying
from triglot.shared.errors import PortingError
from triglot.shared.model import schema
from triglot.shared.model.config import DECODER_HEADS, ModelConfig

WHY = "it belongs to a head that is not kept"


def with_heads(checkpoint: Checkpoint, kept: Collection[str] | None) -> Checkpoint:
    """Return ``checkpoint`` with only the ``kept`` heads; None keeps all. ``left_out`` lists the tensors of the others.

    Raises:
        PortingError: the model does not have a head, or is not an encoder.
        ConfigError: a kept head reads another one that is not kept.
    """
    config = checkpoint.config
    if kept is None or set(kept) == set(config.heads_on_top):
        return checkpoint
    check_heads(kept, config.heads_on_top)
    if set(config.heads_on_top) & set(DECODER_HEADS):
        raise PortingError(
            f"the head {config.heads_on_top[0]} is the output of a decoder and cannot be left out; keep it"
        )
    smaller = _config_with(config, kept)
    unread = without_verifying(checkpoint.tensors)
    tensors = DeferredTensors(
        {name: unread[name] for name in schema.parameters(smaller)}, checkpoint.tensors.__getitem__
    )
    names = checkpoint.source_names
    left_out = {names.get(name, name): WHY for name in checkpoint.tensors if name not in tensors}
    if checkpoint.training:
        left_out["the training state"] = "it belongs to the model with all of its heads"
    text = checkpoint.text if "sentence_embedding" in smaller.heads_on_top else None
    if checkpoint.text and not text:
        left_out["the text settings"] = "they belong to the head sentence_embedding, which is not kept"
    kept_names = {name: names[name] for name in tensors if name in names}
    left_out = {**checkpoint.left_out, **left_out}
    return replace(
        checkpoint,
        config=smaller,
        tensors=tensors,
        source_names=kept_names,
        training=None,
        left_out=left_out,
        text=text,
    )


def check_heads(wanted: Collection[str], present: Collection[str]) -> None:
    """Check that a model has the heads that a user wants to keep.

    Raises:
        PortingError: a head is missing.
    """
    if missing := [head for head in wanted if head not in present]:
        raise PortingError(
            f"the model has no head {', '.join(missing)}; expected any of {', '.join(present) or 'no heads'} (heads=, "
            "or --heads on the command line)"
        )


def _config_with(config: ModelConfig, kept: Collection[str]) -> ModelConfig:
    """Return the configuration with fewer heads, and without the fields of the others."""
    heads = tuple(head for head in config.heads_on_top if head in kept)
    embeds = "sentence_embedding" in heads
    classifies = "sequence_classifier" in heads or "token_classifier" in heads
    return replace(
        config,
        heads_on_top=heads,
        classes=config.classes if classifies else 0,
        pooler_activation=config.pooler_activation if "pooler" in heads else "tanh",
        tied_embeddings=config.tied_embeddings and "masked_lm" in heads,
        sentence_pooling=config.sentence_pooling if embeds else "none",
        sentence_layers=config.sentence_layers if embeds else (),
        sentence_normalized=embeds and config.sentence_normalized,
    )
