"""Checks of the arguments that callers pass to the public functions. Each returns the argument or raises."""

import os
import threading
from collections.abc import Iterable
from typing import Any, cast

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import CheckpointError, ConfigError, InputError
from triglot.shared.inputs import Batch


def checkpoint(value: Any) -> Checkpoint:
    """Return ``value`` if it is a checkpoint.

    Raises:
        CheckpointError: it is not.
    """
    if not isinstance(value, Checkpoint):
        raise CheckpointError(
            f"checkpoint is a {type(value).__name__}; expected a Checkpoint; make one with triglot.load, triglot.port, "
            "triglot.initialize or, from a model, triglot.Checkpoint(model.config, model.weights())"
        )
    return value


def path(name: str, value: Any) -> Any:
    """Return ``value`` if it can be a path.

    Raises:
        InputError: it is empty, or neither text nor a path.
    """
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{name} is a {type(value).__name__}; expected a path")
    if not os.fspath(value):
        raise InputError(f"{name} is empty; expected a path")
    return value


def whole_number(name: str, value: Any, least: int) -> int:
    """Return ``value`` if it is a whole number of at least ``least``.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}; expected a whole number, {least} or more")
    return value


def seconds(name: str, value: Any) -> float:
    """Return ``value`` if it is a time of at least one second, cut to the longest time that the system can wait.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 1:  # NaN is refused too
        raise ConfigError(f"{name} is {value!r}; expected a number of seconds, 1 or more")
    return min(float(value), threading.TIMEOUT_MAX / 2)


def batches(value: Any) -> None:
    """Refuse anything but a sequence of at least one batch.

    Raises:
        InputError: ``value`` is something else.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(batch, Batch) for batch in value):
        raise InputError("batches is not a list of batches; make them with triglot.batch")
    if not value:
        raise InputError("batches is empty; pass at least one batch, or None for random ones")


def description(name: str, value: Any) -> None:
    """Refuse anything but text or None.

    Raises:
        InputError: ``value`` is something else.
    """
    if value is not None and not isinstance(value, str):
        raise InputError(f"{name} is a {type(value).__name__}; expected text for the report")


def names(name: str, value: Any) -> tuple[str, ...] | None:
    """Return the names in an argument as a tuple; None stays None.

    Raises:
        ConfigError: it is a single text, or holds anything but text.
    """
    if value is None:
        return None
    entries: list[object] = [None]  # no names
    if isinstance(value, Iterable) and not isinstance(value, str):
        entries = list(cast("Iterable[object]", value))
    if not all(isinstance(entry, str) for entry in entries):
        raise ConfigError(f"{name} is {value!r:.80}; expected a list of names, or None")
    return tuple(str(entry) for entry in entries)
