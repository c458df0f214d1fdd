"""What a result was obtained with: it belongs into every report."""

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC")

# Idle threads sleep instead of spinning on a core that another process needs; Paddle logs warnings and errors alone.
_QUIET = {"OMP_WAIT_POLICY": "PASSIVE", "GLOG_minloglevel": "1"}

# By what has a framework, its compiler or the allocator compute something else, or at another speed.
_SWITCH = re.compile(
    r"(XLA|JAX|(PY)?TORCH[A-Z]*|FLAGS|OMP|KMP|GOMP|MKL|DNNL|ONEDNN|OPENBLAS|CUBLAS|CUDNN|MALLOC)_\w+"
    "|NVIDIA_TF32_OVERRIDE|CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|GLIBC_TUNABLES|LD_PRELOAD"
)

PACKAGES = (
    *("triglot", "numpy", "scipy", "torch", "paddlepaddle", "jax", "jaxlib", "flax", "optax"),
    *("transformers", "onnxruntime"),  # what the benchmark compares them with
)


def environment() -> dict[str, Any]:
    """The Python, the machine, the versions of the packages that matter, and the variables that change what they do.

    The version of a package that is not installed is null.
    """
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": cores(),
        "packages": {name: _version(name) for name in PACKAGES},
        "variables": variables(),
    }


def variables() -> dict[str, str]:
    """The environment variables that change what is computed, or how fast; not threads and caches, which we set."""
    ours = {*THREAD_VARIABLES, *_QUIET}
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if _SWITCH.fullmatch(name) and name not in ours and not name.endswith("_DIR")
    }


def cores() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads() -> int:
    """How many threads this process was told to use: OMP_NUM_THREADS, or one per core."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) else cores()


def limit_threads(number: int | None) -> None:
    """Let the frameworks that are imported from now on use so many threads; None: OMP_NUM_THREADS, or one per core."""
    os.environ.update(thread_settings(number or threads()))


def thread_settings(number: int) -> dict[str, str]:
    """The environment variables by which the frameworks are told how many threads to use, before their import."""
    return {**dict.fromkeys(THREAD_VARIABLES, str(number)), **_QUIET}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
