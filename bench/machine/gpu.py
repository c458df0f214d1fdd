"""What is specific to a GPU: whether a framework finds it, its own clock, and its memory.

``loaded`` is ``sys.modules``, so that this module imports no framework itself.
"""

from collections.abc import Mapping
from typing import Any

from triglot.shared.errors import BenchError

from .load import MEBIBYTE


class DeviceMissingError(BenchError):
    """A framework does not find the device that it should compute on."""


def check_device(framework: str, device: str, loaded: Mapping[str, Any]) -> None:
    """Refuse a device that a framework does not find, with the same message for every framework.

    Raises:
        DeviceMissingError: the framework does not find the device.
    """
    if device != "cpu" and not _finds(framework, device, loaded):
        raise DeviceMissingError(f"{framework} finds no {device} device; choose --device cpu")


def _finds(framework: str, device: str, loaded: Mapping[str, Any]) -> bool:
    if framework == "jax":
        try:
            return bool(loaded["jax"].devices(device))
        except RuntimeError:
            return False
    cuda = _cuda(framework, loaded)
    return cuda.device_count() > 0 if framework == "paddle" else cuda.is_available()


def _cuda(framework: str, loaded: Mapping[str, Any]) -> Any:
    """Return the CUDA module of PyTorch or Paddle."""
    return loaded["paddle"].device.cuda if framework == "paddle" else loaded["torch"].cuda


class DeviceClock:
    """Two events in the queue of a device, which records the time when it reaches each of them.

    The time between them runs from the first work of a call to the last. It excludes the host's wait for the results,
    but includes gaps in which the device waits for work from the host.
    """

    def __init__(self, before: Any, after: Any) -> None:
        self._before, self._after = before, after

    def start(self) -> None:
        """Put the first event into the queue, before the work of a call."""
        self._before.record()

    def stop(self) -> None:
        """Put the second event after the work. Call this before waiting, or the wait is measured too."""
        self._after.record()

    def milliseconds(self) -> float:
        """Return the time between the events, once the device has reached both."""
        return float(self._before.elapsed_time(self._after))


def clock(framework: str, device: str, loaded: Mapping[str, Any]) -> DeviceClock | None:
    """Return the clock of a device; None on a CPU, and in JAX, which has no events."""
    if device == "cpu" or framework not in ("torch", "paddle"):
        return None
    event = _cuda(framework, loaded).Event
    return DeviceClock(event(enable_timing=True), event(enable_timing=True))  # resolution: half a microsecond


def peak_mb(framework: str, device: str, loaded: Mapping[str, Any]) -> float | None:
    """Return the most memory in MiB that the framework held on the device; None on a CPU."""
    if device == "cpu":
        return None
    if framework == "jax":
        statistics: dict[str, int] = loaded["jax"].devices(device)[0].memory_stats() or {}
        return statistics.get("peak_bytes_in_use", 0) / MEBIBYTE
    return _cuda(framework, loaded).max_memory_allocated() / MEBIBYTE
