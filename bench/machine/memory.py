"""Memory of a process and of the machine. Light to import, because idle workers are measured with it."""

import ctypes
import resource
from pathlib import Path

MEBIBYTE = 2**20
_MACHINE = Path("/proc/meminfo")
_PROCESS = Path("/proc/self/status")


def resident() -> int:
    """Return the bytes of memory that the process holds now."""
    return _status("VmRSS")


def peak_resident() -> int:
    """Return the most bytes that the process has held. ``getrusage`` may return the peak of its parent instead."""
    return _status("VmHWM")


def give_back() -> None:
    """Return free memory to the system. glibc keeps much of it, and workers tell it to keep everything."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # only glibc has it
        library.malloc_trim(0)


def available_mb() -> float:
    """Return the free memory of the machine in MiB; infinite if the system does not say."""
    if not _MACHINE.is_file():
        return float("inf")
    return _kibibytes(_MACHINE, "MemAvailable") / 1024


def _status(name: str) -> int:
    if not _PROCESS.is_file():  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return _kibibytes(_PROCESS, name) * 1024


def _kibibytes(file: Path, name: str) -> int:
    (line,) = [line for line in file.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1])
