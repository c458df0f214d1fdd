"""Dialect ``neutral``: Triglot's own checkpoint file."""

from pathlib import Path

from triglot.shared import checkpoint
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.model.overrides import Given, configured

EXPECTED = "a neutral checkpoint (.npz)"


def recognises(source: Path) -> bool:
    """Whether ``source`` is to be read as a neutral checkpoint: any file whose name does not say otherwise."""
    return source.is_file()


def read(source: Path, config: Given = None) -> Checkpoint:
    """The checkpoint in the file ``source``; ``config`` corrects its configuration.

    Raises:
        CheckpointError: the file is damaged, or its tensors do not match the corrected configuration.
        ConfigError: ``config`` is wrong.
    """
    return reconfigured(checkpoint.load(source), config)


def reconfigured(given: Checkpoint, config: Given) -> Checkpoint:
    """The same tensors under a corrected configuration; the very same checkpoint if there is nothing to correct."""
    if config is None:
        return given
    return Checkpoint(configured(given.config.to_dict(), config), given.tensors, given.source_names)


def write(given: Checkpoint, target: Path) -> None:
    """Write the file ``target``; one of that name is replaced.

    Raises:
        OutputError: the target cannot be written.
    """
    checkpoint.save(given, target)
