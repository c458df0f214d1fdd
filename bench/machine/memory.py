"""Memory of a process and of the machine. Light to import: an idle worker is measured with it."""

import ctypes
import resource
from pathlib import Path

MEBIBYTE = 2**20
_MACHINE = Path("/proc/meminfo")
_PROCESS = Path("/proc/self/status")


def resident() -> int:
    """Bytes of memory that the process has now."""
    return _status("VmRSS")


def most_resident() -> int:
    """The most bytes of memory that it had. What ``getrusage`` says may be the peak of the process that started it."""
    return _status("VmHWM")


def give_back() -> None:
    """Give what is free back to the system, where glibc manages memory: it keeps much, and may be told to keep all."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc's
        library.malloc_trim(0)


def available_mb() -> float:
    """The mebibytes of the machine that are free to be taken; infinite where that is not known."""
    if not _MACHINE.is_file():
        return float("inf")
    return _kibibytes(_MACHINE, "MemAvailable") / 1024


def _status(name: str) -> int:
    if not _PROCESS.is_file():  # another system
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return _kibibytes(_PROCESS, name) * 1024


def _kibibytes(file: Path, name: str) -> int:
    (line,) = [line for line in file.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1])
