"""Errors that users can cause and fix. Each message says what was received, what was expected and what to do.

All errors are subclasses of ``ValueError``. The command line prints an error as one line and exits with code 2.
``SlowWarning`` is printed too, and does not stop the run.
"""

from collections.abc import Sequence
from difflib import get_close_matches


def suggestion(name: str, names: Sequence[str]) -> str:
    """Return the start of an answer to a misspelt name: the name that was probably meant, if there is one."""
    close = get_close_matches(name, names, 1)
    return f"did you mean {close[0]!r}? " if close else ""


class SlowWarning(UserWarning):
    """What was asked for is computed correctly, but slowly. The command line prints it as one line."""


class TriglotError(ValueError):
    """The base class of the errors below: something that the user provided cannot be used."""


class ConfigError(TriglotError):
    """A model configuration has an unknown field, a bad value or an impossible combination."""


class CheckpointError(TriglotError):
    """A checkpoint file is damaged, or its tensors do not match its configuration."""


class OutputError(TriglotError):
    """A file cannot be written to its target."""


class InputError(TriglotError):
    """Token ids, masks or other model inputs do not fit the model."""


class TaskError(TriglotError):
    """A training task has impossible settings, or cannot be learned with them."""


class PortingError(TriglotError):
    """Foreign weights cannot be translated without loss."""


class BenchError(TriglotError):
    """A benchmark report cannot be read, or a benchmark cannot run with these settings."""


class TrainingError(TriglotError):
    """A training plan is impossible, or a model cannot be trained with it."""


class FrameworkError(TriglotError):
    """A framework is unknown or not installed, or does not support a device, dtype or mode."""


class NotFiniteError(FrameworkError):
    """A value overflows the number format, so that no result can be judged by it."""


class ModelNotFoundError(TriglotError):
    """A model name is neither a recipe, nor a checkpoint file, nor a model directory."""
