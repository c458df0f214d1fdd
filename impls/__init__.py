"""The implementations by framework name. Each is imported when it is first asked for."""

import importlib
import importlib.util
import warnings
from collections.abc import Sequence

from triglot.shared.checkpoint import Checkpoint, check_finite
from triglot.shared.choices import DEVICES, DTYPES, FRAMEWORKS, MODES
from triglot.shared.environment import why_bfloat16_is_slow
from triglot.shared.errors import FrameworkError, SlowWarning
from triglot.shared.memory import keep_freed_memory, keep_freed_memory_of_threads

from .model import Model

REFERENCE = "numpy"
PACKAGES: dict[str, str] = {
    "torch": "pytorch",
    "paddle": "paddlepaddle",
    "jax": "flax_nnx",
    REFERENCE: "numpy_reference",
}
REQUIRED_MODULES: dict[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "paddle": ("paddle",),
    "jax": ("jax", "flax", "optax"),
    REFERENCE: ("numpy",),
}


def installed() -> tuple[str, ...]:
    """Return the installed frameworks of "torch", "paddle" and "jax", in that order. None is imported."""
    return tuple(name for name in FRAMEWORKS if _is_installed(name))


def build(
    framework: str, checkpoint: Checkpoint, *, device: str = "cpu", dtype: str | None = None, mode: str = "eager"
) -> Model:
    """Build the model of ``checkpoint`` in "torch", "paddle", "jax" or "numpy", which is the reference.

    ``dtype``: None is float32, and float64 for the reference. ``device``: "cpu" or "cuda". The parameters may share
    memory with the checkpoint (PyTorch on the CPU, NumPy), so do not change its tensors. On a CPU, the modes "jit" and
    "compiled" make the process keep memory that it frees, and ask for huge pages (``shared/memory.py``); in JAX, "jit"
    makes it keep all of it, in one heap for all threads.

    Raises:
        FrameworkError: the framework is unknown or not installed, or does not support the device, dtype or mode.
        CheckpointError: a weight is NaN or infinite, or too large for the dtype.
    """
    check_choice("device", device, DEVICES)
    dtype = dtype or ("float64" if framework == REFERENCE else "float32")
    check_choice("dtype", dtype, DTYPES)
    check_choice("mode", mode, MODES)
    check_finite(checkpoint, dtype)
    check_choice("framework", framework, tuple(PACKAGES))
    if not _is_installed(framework):
        raise FrameworkError(f"framework {framework!r} is not installed; install triglot[{framework}]")
    if device == "cpu" and mode != "eager":
        keep_freed_memory()
        if mode == "jit" and framework == "jax":
            keep_freed_memory_of_threads()
    backend = importlib.import_module(f".{PACKAGES[framework]}.backend", __name__)
    return Model(backend.Backend(checkpoint, device, dtype, mode))


def warn_if_slow(framework: str, device: str, dtype: str, mode: str) -> None:
    """Warn if a model in mode "compiled" is known to be slower in bfloat16 than in float32.

    The warning points at the caller of the function that calls this one.
    """
    if (device, dtype, mode) != ("cpu", "bfloat16", "compiled"):
        return
    reason = "on a CPU, JAX is slower in bfloat16 than in float32" if framework == "jax" else why_bfloat16_is_slow()
    if reason:
        warnings.warn(f"{reason}; use float32", SlowWarning, stacklevel=3)


def check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    """Refuse an unknown value.

    Raises:
        FrameworkError: ``value`` is not one of ``choices``.
    """
    if value not in choices:
        raise FrameworkError(f"unknown {what} {value!r}; expected one of {', '.join(choices)}")


def _is_installed(framework: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in REQUIRED_MODULES[framework])
