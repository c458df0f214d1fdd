"""Time on a GPU by the events of its own queue: from the first work of a call to the last.

Without the host's wait, that is, but with the gaps in which the device waits for the host to give it more to do.
"""

from collections.abc import Mapping
from typing import Any


class DeviceClock:
    """Two events of a queue: the device notes the time when it comes to each of them."""

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


def device_clock(framework: str, device: str, loaded: Mapping[str, Any]) -> DeviceClock | None:
    """The clock of a device; None on a CPU, and in JAX, which shows no events. ``loaded``: modules by name."""
    if device == "cpu" or framework not in ("torch", "paddle"):
        return None
    # CUDA's clock has a resolution of half a microsecond.
    cuda = loaded["torch"].cuda if framework == "torch" else loaded["paddle"].device.cuda
    return DeviceClock(*(cuda.Event(enable_timing=True) for _ in range(2)))
