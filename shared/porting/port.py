"""Read and write weights: find the dialect of a source, and pass the work to it."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.checkpoint.manifest import TensorRecord
from triglot.shared.errors import PortingError
from triglot.shared.model.recipes import ConfigOverride

from . import containers
from .dialects import DIALECTS, neutral
from .dialects.dialect import Dialect
from .heads import with_heads
from .source import Source
from .stream import OnBytes, Stream

_SHOWN_NAMES = 3  # in a message


def find_dialect(name: str) -> Dialect:
    """Return the dialect called ``name``.

    Raises:
        PortingError: there is no such dialect.
    """
    if name not in DIALECTS:
        raise PortingError(f"dialect is {name!r}; expected one of {', '.join(DIALECTS)}")
    return DIALECTS[name]


def read(
    source: str | Path | Checkpoint,
    dialect: str | None = None,
    config: ConfigOverride = None,
    heads: Collection[str] | None = None,
) -> Checkpoint:
    """Read ``source``, a path or a checkpoint, as a neutral checkpoint.

    ``dialect`` None means that the names of the tensors decide.
    ``config`` says what the weights do not, or corrects it: a recipe, a whole configuration or single fields.
    ``heads`` are the heads of an encoder to keep; None keeps all.

    Raises:
        ModelNotFoundError: ``source`` does not exist.
        PortingError: the dialect is unknown, or ``source`` is not in it or cannot be translated without loss.
        CheckpointError: a checkpoint file is damaged, or does not match ``config``.
        ConfigError: ``config`` is wrong.
    """
    if isinstance(source, Checkpoint):
        if dialect is not None and find_dialect(dialect).name != neutral.DIALECT.name:
            raise PortingError(f"source_dialect is {dialect!r}, but a checkpoint is always neutral; omit it")
        return with_heads(neutral.reconfigured(source, config), heads)
    return recognise(source, dialect, heads).read(config)


def check_target(target: Path, dialect: str, shard_size: int | None = None) -> None:
    """Check, before any work is done, that ``target`` can be written in ``dialect``.

    Raises:
        PortingError: the dialect is unknown, or writes only one file; or the suffix of ``target`` is unknown, or
            that of a file although a folder would be written.
        OutputError: the path cannot be written.
    """
    writer = find_dialect(dialect)
    if shard_size is None:
        writer.check_target(target)
        return
    if writer.write_shards is None:
        able = " or ".join(name for name, other in DIALECTS.items() if other.write_shards)
        raise PortingError(
            f"the dialect {dialect} writes one file; omit the size of shards (shard_size=, or --shard-size), or write "
            f"{able}"
        )
    containers.check_folder(target)


def write(
    checkpoint: Checkpoint,
    target: str | Path,
    dialect: str = neutral.DIALECT.name,
    *,
    shard_size: int | None = None,
    allow_nonfinite: bool = False,
    dry_run: bool = False,
    on_bytes: OnBytes | None = None,
) -> dict[str, TensorRecord]:
    """Write ``checkpoint`` to ``target`` in ``dialect``, completely or not at all. Return the records of its tensors.

    ``shard_size`` divides it into files of at most that many bytes. A ``dry_run`` checks everything and writes nothing.

    Raises:
        PortingError: the dialect is unknown, or cannot express the model; or a tensor holds NaN or infinity, which
            ``allow_nonfinite`` would keep.
        OutputError: ``target`` cannot be written.
    """
    target = Path(target)
    writer = find_dialect(dialect)
    check_target(target, dialect, shard_size)
    writer.layout(checkpoint, target)
    stream = Stream(checkpoint.tensors, on_bytes, allow_nonfinite=allow_nonfinite)
    if dry_run or (target.exists() and not target.is_file() and not target.is_dir()):
        stream.read_all()  # what was written to a pipe or a device cannot be taken back
    if dry_run:
        return stream.records
    streamed = replace(checkpoint, tensors=stream)
    if writer.write_shards and shard_size is not None:
        writer.write_shards(streamed, target, shard_size)
    else:
        writer.write(streamed, target)
    return stream.records


@dataclass(frozen=True)
class Recognised:
    """A source whose dialect is known, and what shows it: the name of a tensor or of a file; empty if the user said."""

    source: Source
    dialect: Dialect
    sign: str

    def read(self, config: ConfigOverride) -> Checkpoint:
        """Read the source as a neutral checkpoint; see ``read``."""
        checkpoint = with_heads(self.dialect.read(self.source, config), self.source.heads)
        if self.dialect is neutral.DIALECT or not (wrapper := self.source.wrapper):
            return checkpoint
        reason = "a wrapper of the module put it before every name"
        return replace(checkpoint, left_out={**checkpoint.left_out, f"the prefix {wrapper}": reason})


def recognise(path: str | Path, dialect: str | None, heads: Collection[str] | None = None) -> Recognised:
    """Return the source at ``path`` with its dialect: the one that the user names, or the one that its names show.

    ``heads`` are the heads to keep; see ``read``.

    Raises:
        ModelNotFoundError: ``path`` does not exist.
        PortingError: the dialect is unknown, no dialect or several ones fit, or a file is unreadable.
    """
    possible = candidates(path, dialect, heads)
    if len(possible) > 1:
        names = " or ".join(candidate.dialect.name for candidate in possible)
        raise PortingError(
            f"{path} may be in the dialect {names}, because it has {possible[0].sign}; name the right one "
            "(source_dialect=, or --source-dialect on the command line), or give an input and the output of the "
            "original (example=, or --example)"
        )
    return possible[0]


def candidates(path: str | Path, dialect: str | None, heads: Collection[str] | None = None) -> list[Recognised]:
    """Return the source at ``path`` with each dialect whose names it has, or with the one that the user names.

    Raises:
        TriglotError: see ``recognise``.
    """
    source = Source(Path(path), heads)
    if dialect is not None:
        named = find_dialect(dialect)
        if source.is_folder and not named.reads_folders:
            raise PortingError(f"{source.path} is a folder; expected {named.expected}")
        return [Recognised(source, named, "")]
    possible = [Recognised(source, dialect, sign) for dialect in DIALECTS.values() if (sign := dialect.sign(source))]
    if not possible:
        starts = {name.partition(".")[0] for name in source.tensors}
        remove = f"remove {min(starts)}. from the names if it is only a prefix, or " if len(starts) == 1 else ""
        raise PortingError(
            f"the dialect of {source.path} is unknown: {_model_type(source)}its tensors are "
            f"{_some(list(source.tensors))}; expected the names of {', '.join(DIALECTS)}; {remove}add a dialect "
            "(docs/porting.md shows how)"
        )
    return possible


def _model_type(source: Source) -> str:
    """Return the part of a message that names the folder's ``model_type``; empty if it has none."""
    if not source.is_folder or not (source.path / source.config_file).is_file():
        return ""
    model_type = (source.fields or {}).get("model_type")
    return f"its model_type is {model_type!r:.80}, and " if model_type else ""


def _some(names: list[str]) -> str:
    """Return the first names, for a message."""
    others = len(names) - _SHOWN_NAMES
    shown = ", ".join(f"{name:.80}" for name in names[:_SHOWN_NAMES])
    return f"{shown} and {others} more" if others > 0 else shown or "none"
