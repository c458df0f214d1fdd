"""Dialect ``neutral``: Triglot's own checkpoint file."""

from triglot.shared import checkpoint as checkpoints
from triglot.shared.checkpoint import Checkpoint, manifest
from triglot.shared.model.recipes import ConfigOverride, configured
from triglot.shared.porting.source import Source

from .dialect import Dialect


def sign(source: Source) -> str:
    """Return the name of the manifest, if the source is a checkpoint."""
    return manifest.MEMBER if source.is_neutral else ""


def read(source: Source, config: ConfigOverride = None) -> Checkpoint:
    """Load a checkpoint; ``config`` corrects its configuration.

    Raises:
        CheckpointError: the file is damaged, or its tensors do not match the corrected configuration.
        ConfigError: ``config`` is wrong.
    """
    return reconfigured(checkpoints.load(source.path), config)


def reconfigured(checkpoint: Checkpoint, config: ConfigOverride) -> Checkpoint:
    """Return the same tensors with a corrected configuration, or ``checkpoint`` itself if ``config`` is None."""
    if config is None:
        return checkpoint
    final = configured(checkpoint.config.to_dict(), config)
    return Checkpoint(
        final, checkpoint.tensors, checkpoint.source_names, text=checkpoint.text, tokenizer=checkpoint.tokenizer
    )


DIALECT = Dialect(
    "neutral",
    "a neutral checkpoint (.npz)",
    sign,
    read,
    write=checkpoints.save,
    check_target=checkpoints.check_target,
    reads_folders=False,
)
