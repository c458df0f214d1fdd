"""How busy the machine is, and how much memory is in use.

Times from a busy machine mean little, and the report says so.
"""

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

BUSY = 0.1  # processors that other processes may use before the machine counts as busy
STEADY = 1.2  # slow rounds over fast ones; a neighbour on the same physical core makes it 1.5 without raising the load
UNRANKED = 2.0  # slow rounds over fast ones; beyond this, some ratios were wrong by a factor of 10 or more
MEBIBYTE = 2**20

_STATISTICS = Path("/proc/stat")
_FREQUENCY = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
_MACHINE_MEMORY = Path("/proc/meminfo")
_PROCESS = Path("/proc/self/status")


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
        processes = None
        if _STATISTICS.is_file():
            processes = sum(entry.name.isdigit() for entry in Path("/proc").iterdir())
        return cls(load, frequency, processes)


def busy_seconds() -> float | None:
    """Return the seconds that all processors were in use since the machine started; None if it does not say."""
    if not _STATISTICS.is_file():
        return None
    user, nice, system, _, _, interrupt, soft, *_ = (int(part) for part in _STATISTICS.read_text().split()[1:11])
    return (user + nice + system + interrupt + soft) / os.sysconf("SC_CLK_TCK")


def processors(count: int) -> list[int]:
    """Return the processors to which every worker is confined: the first ``count`` that this process may use."""
    return sorted(os.sched_getaffinity(0))[:count] if hasattr(os, "sched_getaffinity") else []


def resident() -> int:
    """Return the bytes of memory that this process holds now."""
    return _memory_of_process("VmRSS")


def peak_resident() -> int:
    """Return the most bytes that this process has held. ``getrusage`` may return the peak of its parent instead."""
    return _memory_of_process("VmHWM")


def available_mb() -> float:
    """Return the free memory of the machine in MiB; infinite if the system does not say."""
    return _kibibytes(_MACHINE_MEMORY, "MemAvailable") / 1024 if _MACHINE_MEMORY.is_file() else float("inf")


def _memory_of_process(name: str) -> int:
    if not _PROCESS.is_file():  # not Linux
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return _kibibytes(_PROCESS, name) * 1024


def _kibibytes(file: Path, name: str) -> int:
    (line,) = [line for line in file.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1])
