"""What a result was obtained with: it belongs into every report."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("triglot", "numpy", "scipy", "torch", "paddlepaddle", "jax", "jaxlib", "flax")


def environment() -> dict[str, Any]:
    """The Python, the machine and the versions of the packages that matter; null for one that is not installed."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": cores(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def cores() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
