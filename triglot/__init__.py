"""One Transformer in PyTorch, PaddlePaddle and JAX/Flax, with the same weights, proven to compute the same thing.

Importing this package imports no framework. Each framework is imported when it is first used.
"""

from triglot.api import batch, build, check, frameworks, initialize, load, port, recipes, save
from triglot.embedder import Embedder
from triglot.impls.model import Model
from triglot.parity.report import Report
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import (
    BenchError,
    CheckpointError,
    ConfigError,
    FrameworkError,
    InputError,
    ModelNotFoundError,
    OutputError,
    PortingError,
    SlowWarning,
    TaskError,
    TrainingError,
    TriglotError,
)
from triglot.shared.inputs import Batch, taught, teacher_forcing
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.mask_formats import export_mask, import_mask
from triglot.shared.training.plan import Plan
from triglot.training import score, train, translation

__all__ = [
    "Batch",
    "BenchError",
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "Embedder",
    "FrameworkError",
    "InputError",
    "Model",
    "ModelConfig",
    "ModelNotFoundError",
    "OutputError",
    "Plan",
    "PortingError",
    "Report",
    "SlowWarning",
    "TaskError",
    "TrainingError",
    "TriglotError",
    "batch",
    "build",
    "check",
    "export_mask",
    "frameworks",
    "import_mask",
    "initialize",
    "load",
    "port",
    "recipes",
    "save",
    "score",
    "taught",
    "teacher_forcing",
    "train",
    "translation",
]
