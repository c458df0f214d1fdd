"""Read and write weights: find the dialect of a source, and pass the work to it."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from triglot.shared.checkpoint import Checkpoint, check_finite
from triglot.shared.errors import CheckpointError, PortingError
from triglot.shared.model.recipes import ConfigOverride

from .dialects import DIALECTS, neutral
from .dialects.dialect import Dialect
from .heads import with_heads
from .source import Source

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


def write(
    checkpoint: Checkpoint,
    target: str | Path,
    dialect: str = neutral.DIALECT.name,
    *,
    allow_nonfinite: bool = False,
) -> None:
    """Write ``checkpoint`` to ``target`` in ``dialect``, completely or not at all.

    Raises:
        PortingError: the dialect is unknown, or cannot express the model; or a tensor holds NaN or infinity, which
            ``allow_nonfinite`` would keep.
        OutputError: ``target`` cannot be written.
    """
    if not allow_nonfinite:
        try:
            check_finite(checkpoint, "float64")
        except CheckpointError as error:
            raise PortingError(f"{error}, or keep them (allow_nonfinite=True, or --allow-nonfinite)") from error
    find_dialect(dialect).write(checkpoint, Path(target))


@dataclass(frozen=True)
class Recognised:
    """A source whose dialect is known, and what shows it: the name of a tensor or of a file; empty if the user said."""

    source: Source
    dialect: Dialect
    sign: str

    def read(self, config: ConfigOverride) -> Checkpoint:
        """Read the source as a neutral checkpoint; see ``read``."""
        return with_heads(self.dialect.read(self.source, config), self.source.heads)


def recognise(path: str | Path, dialect: str | None, heads: Collection[str] | None = None) -> Recognised:
    """Return the source at ``path`` with its dialect: the one that the user names, or the one that its names show.

    ``heads`` are the heads to keep; see ``read``.

    Raises:
        ModelNotFoundError: ``path`` does not exist.
        PortingError: the dialect is unknown, no dialect or several ones fit, or a file is unreadable.
    """
    source = Source(Path(path), heads)
    if dialect is not None:
        named = find_dialect(dialect)
        if source.is_folder and not named.reads_folders:
            raise PortingError(f"{source.path} is a folder; expected {named.expected}")
        return Recognised(source, named, "")
    signs = {name: sign for name, dialect in DIALECTS.items() if (sign := dialect.sign(source))}
    if len(signs) > 1:
        raise PortingError(
            f"{source.path} may be in the dialect {' or '.join(signs)}, because it has {next(iter(signs.values()))}; "
            "name the right one (source_dialect=, or --source-dialect on the command line)"
        )
    for name, sign in signs.items():
        return Recognised(source, DIALECTS[name], sign)
    raise PortingError(
        f"the dialect of {source.path} is unknown: its tensors are {_some(list(source.tensors))}; expected "
        f"the names of {', '.join(DIALECTS)}"
    )


def _some(names: list[str]) -> str:
    """Return the first names, for a message."""
    others = len(names) - _SHOWN_NAMES
    shown = ", ".join(f"{name:.80}" for name in names[:_SHOWN_NAMES])
    return f"{shown} and {others} more" if others > 0 else shown or "none"
