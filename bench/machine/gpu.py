"""What only a GPU has: whether it is there, its own clock, and its memory. ``loaded``: the modules of the process."""

from collections.abc import Mapping
from typing import Any

from triglot.shared.errors import BenchError

_MEBIBYTE = 2**20


class DeviceMissingError(BenchError):
    """A framework does not find the device that it is asked to compute on."""


def check(framework: str, device: str, loaded: Mapping[str, Any]) -> None:
    """Refuse a device that a framework does not find, before it says so in words of its own.

    Raises:
        DeviceMissingError: names the framework.
    """
    if device != "cpu" and not _finds(framework, device, loaded):
        raise DeviceMissingError(f"{framework} finds no {device} device; choose --device cpu")


def _finds(framework: str, device: str, loaded: Mapping[str, Any]) -> bool:
    if framework == "jax":
        try:
            return bool(loaded["jax"].devices(device))
        except RuntimeError:
            return False
    if framework == "paddle":
        return loaded["paddle"].device.cuda.device_count() > 0
    return loaded["torch"].cuda.is_available()


class DeviceClock:
    """Two events of a queue: the device notes the time when it comes to each of them.

    So it measures from the first work of a call to the last, without the host's wait, but with the gaps in which the
    device waits for the host to give it more to do.
    """

    def __init__(self, before: Any, after: Any) -> None:
        self._before, self._after = before, after

    def start(self) -> None:
        """Before the first work of a call is put into the queue."""
        self._before.record()

    def stop(self) -> None:
        """Behind the last, before anybody waits for it: later, the wait itself would be measured."""
        self._after.record()

    def milliseconds(self) -> float:
        """What the device took from one to the other, once it has come to both."""
        return float(self._before.elapsed_time(self._after))


def clock(framework: str, device: str, loaded: Mapping[str, Any]) -> DeviceClock | None:
    """The clock of a device; None on a CPU, and in JAX, which shows no events."""
    if device == "cpu" or framework not in ("torch", "paddle"):
        return None
    # CUDA's clock has a resolution of half a microsecond.
    cuda = loaded["torch"].cuda if framework == "torch" else loaded["paddle"].device.cuda
    return DeviceClock(*(cuda.Event(enable_timing=True) for _ in range(2)))


def peak_mb(framework: str, device: str, loaded: Mapping[str, Any]) -> float | None:
    """The most memory that the framework held on the device, in mebibytes; None on a CPU."""
    if device == "cpu":
        return None
    if framework == "jax":
        statistics: dict[str, int] = loaded["jax"].devices(device)[0].memory_stats() or {}
        return statistics.get("peak_bytes_in_use", 0) / _MEBIBYTE
    cuda = loaded["torch"].cuda if framework == "torch" else loaded["paddle"].device.cuda
    return cuda.max_memory_allocated() / _MEBIBYTE
