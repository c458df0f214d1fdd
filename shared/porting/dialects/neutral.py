"""Dialect ``neutral``: Triglot's own checkpoint, a file or a folder of shards."""

from dataclasses import replace
from pathlib import Path

from triglot.shared import checkpoint as checkpoints
from triglot.shared.checkpoint import Checkpoint, manifest, shards
from triglot.shared.model.recipes import ConfigOverride, configured
from triglot.shared.porting.source import Source

from .dialect import Dialect, Layout
from .own_modules import CanonicalTable


def sign(source: Source) -> str:
    """Return the name of the manifest, if the source is a checkpoint."""
    if not source.is_neutral:
        return ""
    return shards.INDEX if source.path.is_dir() else manifest.MEMBER


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
    left_out = dict(checkpoint.left_out)
    if checkpoint.training and final != checkpoint.config:
        left_out["the training state"] = "it belongs to the model with another configuration"
    training = checkpoint.training if final == checkpoint.config else None
    return replace(checkpoint, config=final, training=training, left_out=left_out)


def layout(checkpoint: Checkpoint, target: Path) -> Layout:
    """Return the places of all parameters, which are neither renamed nor changed."""
    return Layout(CanonicalTable("neutral", {}, transposed=False).places(checkpoint.config))


DIALECT = Dialect(
    "neutral",
    "a neutral checkpoint, a file .npz or a folder of shards",
    sign,
    read,
    write=checkpoints.save,
    check_target=checkpoints.check_target,
    layout=layout,
    write_shards=checkpoints.save,
)
