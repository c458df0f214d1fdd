"""Foreign weights to neutral checkpoints and back: one module per dialect, each with one invertible table of names."""

import os
from pathlib import Path
from types import ModuleType

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import ModelNotFoundError, PortingError
from triglot.shared.model.overrides import Given
from triglot.shared.pickles import WHY
from triglot.shared.porting.dialects import huggingface, neutral
from triglot.shared.porting.dialects.articles import ARTICLES, Article

# Each has recognises(path), read(path, config), write(checkpoint, path), and EXPECTED, its files in words.
Dialect = ModuleType | Article
DIALECTS: dict[str, Dialect] = {"huggingface": huggingface, "neutral": neutral, **ARTICLES}

# The first that recognises a path reads it. The dialects of the articles have to be named: other models have the same
# names (ERNIE those of article 001, torch.nn.MultiheadAttention those of article 004) and compute something else.
_BY_LOOKS = (huggingface, neutral)

# What libraries call the pickled weights in a model folder.
_PICKLED = ("pytorch_model.bin", "model_state.pdparams")


def port(
    source: str | Path | Checkpoint,
    target: str | Path | None = None,
    *,
    source_dialect: str | None = None,
    target_dialect: str | None = None,
    config: Given = None,
) -> Checkpoint:
    """Read ``source``, a path in a known dialect or a checkpoint; write it to ``target``, if that is given.

    ``source_dialect`` None: by the looks of the path; those of the articles have to be named. ``target_dialect`` None:
    "neutral". ``config`` is what the weights do not say (heads, activation, epsilon and masking, for a bare state dict;
    for that of an article, what differs from its recipe) or say wrongly: the name of a recipe, a whole configuration,
    or single fields by name.

    Raises:
        ModelNotFoundError: there is nothing at ``source``.
        PortingError: a dialect is unknown, the source is not in it, is a pickle, or cannot be translated without loss.
        CheckpointError: a checkpoint file is damaged, or does not match ``config``.
        ConfigError: ``config`` is wrong.
        OutputError: ``target`` cannot be written.
    """
    writer = _dialect(target_dialect or "neutral")
    if isinstance(source, Checkpoint):
        if source_dialect is not None and _dialect(source_dialect) is not neutral:
            raise PortingError(
                f"source_dialect is {source_dialect!r}, but a checkpoint is neutral already; leave it out"
            )
        ported = neutral.reconfigured(source, config)
    else:
        ported = _reader(Path(source), source_dialect).read(Path(source), config)
    if target is not None:
        writer.write(ported, Path(target))
    return ported


def _reader(source: Path, name: str | None) -> Dialect:
    try:
        source.stat()
        if source.is_dir():
            os.listdir(source)  # a folder that is there may still be closed
    except PermissionError as error:
        raise PortingError(f"cannot read {source}: {error.strerror}; get the right to read it") from error
    except (OSError, ValueError) as error:  # also names that no file can have
        raise ModelNotFoundError(f"{source} does not exist; give a checkpoint file or a model folder") from error
    if name is not None:
        dialect = _dialect(name)
        if not dialect.recognises(source):
            raise PortingError(f"{source} is not in the dialect {name}; expected {dialect.EXPECTED}")
        return dialect
    for dialect in _BY_LOOKS:
        if dialect.recognises(source):
            return dialect
    for pickled in _PICKLED:
        if (source / pickled).is_file():
            raise PortingError(f"cannot read {source / pickled}: it is a pickle; {WHY}")
    if (source / huggingface.SHARDS_FILE).is_file():
        raise PortingError(f"{source} holds sharded weights, which are not read; save the model as one file")
    expected = ", or ".join(dialect.EXPECTED for dialect in _BY_LOOKS)
    raise PortingError(f"{source} is in no known dialect; expected {expected}")


def _dialect(name: str) -> Dialect:
    if name not in DIALECTS:
        raise PortingError(f"unknown dialect {name!r}; expected one of {', '.join(DIALECTS)}")
    return DIALECTS[name]
