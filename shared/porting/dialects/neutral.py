"""Dialect ``neutral``: Triglot's own checkpoint file."""

from pathlib import Path

from triglot.shared import checkpoint as checkpoints
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.model.recipes import ConfigOverride, configured

from .dialect import Dialect


def recognises(source: Path) -> bool:
    """Return whether ``source`` is a file. Files that other dialects recognise by name are theirs first."""
    return source.is_file()


def read(source: Path, config: ConfigOverride = None) -> Checkpoint:
    """Load the checkpoint ``source``; ``config`` corrects its configuration.

    Raises:
        CheckpointError: the file is damaged, or its tensors do not match the corrected configuration.
        ConfigError: ``config`` is wrong.
    """
    return reconfigured(checkpoints.load(source), config)


def reconfigured(checkpoint: Checkpoint, config: ConfigOverride) -> Checkpoint:
    """Return the same tensors with a corrected configuration, or ``checkpoint`` itself if ``config`` is None."""
    if config is None:
        return checkpoint
    return Checkpoint(configured(checkpoint.config.to_dict(), config), checkpoint.tensors, checkpoint.source_names)


DIALECT = Dialect(
    "neutral",
    "a neutral checkpoint (.npz)",
    recognises,
    read,
    write=checkpoints.save,
    check_target=checkpoints.check_target,
)
