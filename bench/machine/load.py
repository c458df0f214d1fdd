"""The state of the machine while something is timed: a busy one gives numbers that mean little, and says so."""

import os
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

_STATISTICS = Path("/proc/stat")
_FREQUENCY = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
BUSY = 0.1  # processors that others may use before a run is called noisy
STEADY = 1.2  # how much slower a slow round may be; a neighbour on the same processor makes it 1.5, and leaves no trace


@dataclass(frozen=True)
class Moment:
    """Seconds of all processors that were in use up to now, ours included, and the time; None where it is not known."""

    busy: float | None
    time: float

    @classmethod
    def now(cls) -> "Moment":
        """Read it."""
        return cls(_busy_seconds(), monotonic())


def others(before: Moment, after: Moment, ours: float) -> float | None:
    """How many processors others used between two moments, when our own work took ``ours`` seconds of them."""
    if before.busy is None or after.busy is None or after.time <= before.time:
        return None
    return max(0.0, (after.busy - before.busy - ours) / (after.time - before.time))


def state() -> dict[str, Any]:
    """Load and frequency, as far as they can be read."""
    frequency = None
    if _FREQUENCY.is_file():
        frequency = int(_FREQUENCY.read_text()) / 1000
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    return {"load_average": list(load) if load else None, "frequency_mhz": frequency, "processes": _processes()}


def processors(count: int) -> list[int]:
    """The processors that every worker is confined to: the first ``count`` of those that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    return sorted(os.sched_getaffinity(0))[:count]


def _busy_seconds() -> float | None:
    if not _STATISTICS.is_file():
        return None
    user, nice, system, _, _, interrupt, soft, *_ = (int(part) for part in _STATISTICS.read_text().split()[1:11])
    return (user + nice + system + interrupt + soft) / os.sysconf("SC_CLK_TCK")


def _processes() -> int | None:
    processes = Path("/proc")
    return sum(entry.name.isdigit() for entry in processes.iterdir()) if _STATISTICS.is_file() else None
