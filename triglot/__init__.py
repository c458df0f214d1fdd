"""One Transformer in PyTorch, PaddlePaddle and JAX/Flax, from the same weights, proven to compute the same thing.

Importing this imports no framework; each is loaded when it is first asked for.
"""

from .api import build, check, frameworks, initialize, load, port, recipes, save
from .shared.checkpoint import Checkpoint
from .shared.config import ModelConfig
from .shared.errors import (
    CheckpointError,
    ConfigError,
    FrameworkError,
    InputError,
    ModelNotFoundError,
    PortingError,
    TriglotError,
)
from .shared.parity.reports import Report
from .shared.protocol import Model

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "FrameworkError",
    "InputError",
    "Model",
    "ModelConfig",
    "ModelNotFoundError",
    "PortingError",
    "Report",
    "TriglotError",
    "build",
    "check",
    "frameworks",
    "initialize",
    "load",
    "port",
    "recipes",
    "save",
]
