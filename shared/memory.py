"""How a process reuses the memory that it has freed."""

import ctypes
import platform

# The parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3

_LARGEST_INT = 2**31 - 1
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc before 2.37 refuses a larger one
_STEP = 256 * 2**20


def keep_freed_memory() -> None:
    """Make glibc keep freed arrays of up to 32 MB and grow the heap in large steps. Without glibc, do nothing.

    By default, glibc returns the memory of large arrays to the system, which has to clear every page for the next
    array. That took a quarter of the reference's time in ``triglot parity minilm``.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(_TRIM_THRESHOLD, _LARGEST_INT)
    library.mallopt(_TOP_PAD, _STEP)
    library.mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
