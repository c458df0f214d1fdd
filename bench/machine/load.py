"""How busy the machine is while something is timed. Times from a busy machine mean little, and the report says so."""

import os
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

BUSY = 0.1  # processors that other processes may use before the machine counts as busy
STEADY = 1.2  # slow rounds over fast ones; a neighbour on the same physical core makes it 1.5 without raising the load

_STATISTICS = Path("/proc/stat")
_FREQUENCY = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")


@dataclass(frozen=True)
class Moment:
    """The time, and the seconds that all processors were in use until then; None if the system does not say."""

    busy: float | None
    time: float

    @classmethod
    def now(cls) -> "Moment":
        """Read both."""
        return cls(_busy_seconds(), monotonic())


@dataclass(frozen=True)
class MachineState:
    """Load averages, frequency of the first processor, and number of processes; None if the system does not say."""

    load_average: list[float] | None = None
    frequency_mhz: float | None = None
    processes: int | None = None

    @classmethod
    def now(cls) -> "MachineState":
        """Read the current state."""
        frequency = int(_FREQUENCY.read_text()) / 1000 if _FREQUENCY.is_file() else None
        load = list(os.getloadavg()) if hasattr(os, "getloadavg") else None
        return cls(load, frequency, _processes())


def used_by_others(before: Moment, after: Moment, own_seconds: float) -> float | None:
    """Return how many processors other processes used between two moments.

    ``own_seconds`` is the processor time that the benchmark itself used.
    """
    if before.busy is None or after.busy is None or after.time <= before.time:
        return None
    return max(0.0, (after.busy - before.busy - own_seconds) / (after.time - before.time))


def processors(count: int) -> list[int]:
    """Return the processors to which every worker is confined: the first ``count`` that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    return sorted(os.sched_getaffinity(0))[:count]


def _busy_seconds() -> float | None:
    if not _STATISTICS.is_file():
        return None
    user, nice, system, _, _, interrupt, soft, *_ = (int(part) for part in _STATISTICS.read_text().split()[1:11])
    return (user + nice + system + interrupt + soft) / os.sysconf("SC_CLK_TCK")


def _processes() -> int | None:
    return sum(entry.name.isdigit() for entry in Path("/proc").iterdir()) if _STATISTICS.is_file() else None
