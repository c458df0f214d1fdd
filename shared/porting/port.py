"""Read and write weights: find the dialect of a source, and pass the work to it."""

import os
from pathlib import Path

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import ModelNotFoundError, PortingError
from triglot.shared.model.recipes import ConfigOverride
from triglot.shared.pickles import WHY

from .dialects import DIALECTS, huggingface, neutral
from .dialects.dialect import Dialect

# The pickled weights of transformers and PaddleNLP in a model folder.
_PICKLED = ("pytorch_model.bin", "model_state.pdparams")


def find_dialect(name: str) -> Dialect:
    """Return the dialect called ``name``.

    Raises:
        PortingError: there is no such dialect.
    """
    if name not in DIALECTS:
        raise PortingError(f"dialect is {name!r}; expected one of {', '.join(DIALECTS)}")
    return DIALECTS[name]


def read(source: str | Path | Checkpoint, dialect: str | None = None, config: ConfigOverride = None) -> Checkpoint:
    """Read ``source``, a path or a checkpoint, as a neutral checkpoint.

    ``dialect`` None means that the path decides between "neutral" and "huggingface"; the others have to be named.
    ``config`` says what the weights do not, or corrects it: a recipe, a whole configuration or single fields.

    Raises:
        ModelNotFoundError: ``source`` does not exist.
        PortingError: the dialect is unknown, or ``source`` is not in it or cannot be translated without loss.
        CheckpointError: a checkpoint file is damaged, or does not match ``config``.
        ConfigError: ``config`` is wrong.
    """
    if isinstance(source, Checkpoint):
        if dialect is not None and find_dialect(dialect).name != neutral.DIALECT.name:
            raise PortingError(f"source_dialect is {dialect!r}, but a checkpoint is always neutral; omit it")
        return neutral.reconfigured(source, config)
    return _dialect_of(Path(source), dialect).read(Path(source), config)


def write(checkpoint: Checkpoint, target: str | Path, dialect: str = neutral.DIALECT.name) -> None:
    """Write ``checkpoint`` to ``target`` in ``dialect``, completely or not at all.

    Raises:
        PortingError: the dialect is unknown, or cannot express the model.
        OutputError: ``target`` cannot be written.
    """
    find_dialect(dialect).write(checkpoint, Path(target))


def _dialect_of(source: Path, name: str | None) -> Dialect:
    try:
        source.stat()
        if source.is_dir():
            os.listdir(source)  # an existing folder may still be unreadable
    except PermissionError as error:
        raise PortingError(f"cannot read {source}: {error.strerror}; change its permissions") from error
    except (OSError, ValueError) as error:  # ValueError: names that no file can have
        raise ModelNotFoundError(
            f"{source} does not exist; give a checkpoint file, a model folder or a recipe"
        ) from error
    if name is not None:
        dialect = find_dialect(name)
        if not dialect.recognises(source):
            raise PortingError(f"{source} is not in the dialect {name}; expected {dialect.expected}")
        return dialect
    candidates = [dialect for dialect in DIALECTS.values() if not dialect.must_be_named]
    for dialect in candidates:
        if dialect.recognises(source):
            return dialect
    for pickled in _PICKLED:
        if (source / pickled).is_file():
            raise PortingError(f"cannot read {source / pickled}: it is a pickle; {WHY}")
    if (source / huggingface.SHARDS_FILE).is_file():
        raise PortingError(
            f"{source} holds sharded weights; expected a single {huggingface.WEIGHTS_FILE}; save the model as one file"
        )
    expected = ", or ".join(dialect.expected for dialect in candidates)
    raise PortingError(f"{source} holds no weights that Triglot recognises; expected {expected}")
