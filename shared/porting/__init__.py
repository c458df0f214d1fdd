"""Foreign weights to neutral checkpoints: one module per dialect, each with one invertible table of names."""

import os
from pathlib import Path

from .. import checkpoint
from ..checkpoint import Checkpoint
from ..errors import ModelNotFoundError, PortingError
from . import huggingface


def port(source: str | Path | Checkpoint, target: str | Path | None = None) -> Checkpoint:
    """Read ``source``, a neutral checkpoint or a folder in a known dialect; write it to ``target``, if that is given.

    Raises:
        ModelNotFoundError: there is nothing at ``source``.
        PortingError: the folder is in no known dialect, or cannot be translated without loss.
        CheckpointError: a checkpoint file is damaged.
        OutputError: ``target`` cannot be written.
    """
    neutral = source if isinstance(source, Checkpoint) else _read(Path(source))
    if target is not None:
        checkpoint.save(neutral, target)
    return neutral


def _read(source: Path) -> Checkpoint:
    if os.path.isdir(source):
        if huggingface.recognises(source):
            return huggingface.read(source)
        raise PortingError(
            f"{source} is in no known dialect; expected {huggingface.CONFIG_FILE} and {huggingface.WEIGHTS_FILE} in it"
        )
    if not os.path.exists(source):
        raise ModelNotFoundError(f"{source} does not exist; give a checkpoint file or a model folder")
    return checkpoint.load(source)
