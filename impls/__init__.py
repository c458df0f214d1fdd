"""The implementations by framework name, each imported when it is first asked for."""

import importlib
import importlib.util
from collections.abc import Sequence

from triglot.shared.checkpoint import Checkpoint, check_finite
from triglot.shared.choices import DEVICES, DTYPES, FRAMEWORKS, MODES
from triglot.shared.errors import FrameworkError
from triglot.shared.model.protocol import Builder, Model

REFERENCE = "numpy"
PACKAGES = {"torch": "pytorch", "paddle": "paddlepaddle", "jax": "flax_nnx", REFERENCE: "numpy_reference"}
_REQUIRED_MODULES = {
    "torch": ("torch",),
    "paddle": ("paddle",),
    "jax": ("jax", "flax", "optax"),
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
    check_choice("framework", framework, tuple(PACKAGES))
    if not _is_installed(framework):
        raise FrameworkError(f"framework {framework!r} is not installed; install triglot[{framework}]")
    return importlib.import_module(f".{PACKAGES[framework]}.model", __name__).Model


def build(
    framework: str, checkpoint: Checkpoint, *, device: str = "cpu", dtype: str | None = None, mode: str = "eager"
) -> Model:
    """The model of ``checkpoint`` in ``framework``, one of "torch", "paddle", "jax" or "numpy", the reference.

    ``dtype`` None is float32, and float64 for the reference. ``device`` is "cpu" or "cuda". What the model returns
    is the caller's; its parameters may share memory with the checkpoint (PyTorch on the CPU, NumPy), so leave that as
    it is.

    Raises:
        FrameworkError: the framework is unknown or not installed, or does not know the device, dtype or mode.
        CheckpointError: a weight is NaN or infinite, or too large for the dtype.
    """
    check_choice("device", device, DEVICES)
    if dtype is not None:
        check_choice("dtype", dtype, DTYPES)
    check_choice("mode", mode, MODES)
    check_finite(checkpoint, dtype or ("float64" if framework == REFERENCE else "float32"))
    return builder(framework)(checkpoint, device=device, dtype=dtype, mode=mode)


def check_choice(what: str, given: str, known: Sequence[str]) -> None:
    """Refuse what is not known.

    Raises:
        FrameworkError: ``given`` is not among ``known``.
    """
    if given not in known:
        raise FrameworkError(f"unknown {what} {given!r}; expected one of {', '.join(known)}")


def _is_installed(framework: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in _REQUIRED_MODULES[framework])
