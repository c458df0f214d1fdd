"""Errors that a user can cause and mend. Each message says what was wrong, what was expected, what to do.

All of them are ``ValueError``: the command line prints them as one line and exits with code 2.
"""


class TriglotError(ValueError):
    """Something that the user handed in cannot be used. Base of every error below."""


class ConfigError(TriglotError):
    """A model configuration has an unknown field, a bad value or an impossible combination."""


class CheckpointError(TriglotError):
    """A checkpoint file is damaged, or its tensors do not match its configuration."""


class OutputError(TriglotError):
    """A file cannot be written where it was asked for."""


class InputError(TriglotError):
    """Token ids, masks or other model inputs do not fit the model."""


class TaskError(TriglotError):
    """A task cannot be set or learned as it was asked for."""


class PortingError(TriglotError):
    """Foreign weights cannot be translated without loss."""


class BenchError(TriglotError):
    """A report of a benchmark cannot be read, or nothing can be timed as asked."""


class TrainingError(TriglotError):
    """A plan of training is impossible, or a model cannot be trained as asked."""


class FrameworkError(TriglotError):
    """A framework is unknown, not installed, or cannot run what was asked of it."""


class ModelNotFoundError(TriglotError):
    """A model name is neither a recipe, nor a checkpoint file, nor a model directory."""
