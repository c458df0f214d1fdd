"""The interface of a dialect."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.model.overrides import Given


@dataclass(frozen=True)
class Dialect:
    """How a library names and lays out the tensors of a model.

    ``expected`` describes its files, for messages. ``recognises`` decides by the path whether a source can be in this
    dialect. ``read`` takes the configuration that completes or corrects the source's own. ``check_target`` refuses,
    before any work is done, a path that ``write`` cannot write.

    ``must_be_named`` says that a source never counts as this dialect unless the user says so, because models that
    compute something else have files that look the same.
    """

    name: str
    expected: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path, Given], Checkpoint]
    write: Callable[[Checkpoint, Path], None]
    check_target: Callable[[Path], None]
    must_be_named: bool = False
