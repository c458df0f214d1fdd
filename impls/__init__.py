"""The implementations by framework name, each imported when it is first asked for."""

import importlib
import importlib.util

from ..shared.checkpoint import Checkpoint
from ..shared.errors import FrameworkError
from ..shared.protocol import Builder, Model

FRAMEWORKS = {"torch": "pytorch", "paddle": "paddlepaddle", "jax": "flax_nnx"}
REFERENCE = "numpy"
DEVICES = ("cpu", "cuda")

PACKAGES = {**FRAMEWORKS, REFERENCE: "numpy_reference"}
_REQUIRED_MODULES = {
    "torch": ("torch",),
    "paddle": ("paddle",),
    "jax": ("jax", "flax"),
    REFERENCE: ("numpy",),
}


def installed() -> tuple[str, ...]:
    """The frameworks that are installed, of "torch", "paddle", "jax", in that order; none is imported."""
    return tuple(name for name in FRAMEWORKS if _is_installed(name))


def builder(framework: str) -> Builder:
    """The class ``Model`` of one implementation.

    Raises:
        FrameworkError: the framework is unknown or not installed.
    """
    if framework not in PACKAGES:
        raise FrameworkError(f"unknown framework {framework!r}; expected one of {', '.join(PACKAGES)}")
    if not _is_installed(framework):
        raise FrameworkError(f"framework {framework!r} is not installed; install triglot[{framework}]")
    return importlib.import_module(f".{PACKAGES[framework]}.model", __name__).Model


def build(framework: str, checkpoint: Checkpoint, *, device: str = "cpu", dtype: str | None = None) -> Model:
    """The model of ``checkpoint`` in ``framework``, one of "torch", "paddle", "jax" or "numpy", the reference.

    ``dtype`` None is float32, and float64 for the reference. ``device`` is "cpu" or "cuda". What the model returns
    is the caller's; its parameters may share memory with the checkpoint (PyTorch on the CPU), so leave that unchanged.

    Raises:
        FrameworkError: the framework is unknown or not installed, or does not know the device or dtype.
    """
    if device not in DEVICES:
        raise FrameworkError(f"unknown device {device!r}; expected one of {', '.join(DEVICES)}")
    return builder(framework)(checkpoint, device=device, dtype=dtype)


def _is_installed(framework: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in _REQUIRED_MODULES[framework])
