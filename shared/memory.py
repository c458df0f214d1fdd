"""How a process reuses the memory that it has freed."""

import ctypes
import os
import platform

# The parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

_LARGEST = 256 * 2**20  # bytes of an array whose memory is kept
_LARGEST_IN_OLD_VERSIONS = 32 * 2**20  # bytes; old versions of glibc refuse a larger threshold

# The user's own settings of what glibc keeps: MALLOC_TRIM_THRESHOLD_, or glibc.malloc.trim_threshold in GLIBC_TUNABLES.
_SETTINGS = ("trim_threshold", "top_pad", "mmap_threshold", "mmap_max")


def keep_freed_memory() -> None:
    """Make glibc keep the memory of freed arrays, up to 512 MB at the end of the heap, and use it for new ones.

    By default, glibc may return the memory of large arrays to the system. The system then has to clear each page
    again for the next array, in every call of a model: that takes up to a quarter of the time of an encoder.

    This applies to the whole process, except that threads other than the main one still return arrays of more than 64
    MB. Other processes cannot use the memory that it keeps. Without glibc, or if the environment says what glibc shall
    keep, do nothing.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    chosen = any(f"MALLOC_{name.upper()}_" in os.environ or f"malloc.{name}=" in tunables for name in _SETTINGS)
    if chosen or platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    if not library.mallopt(_MMAP_THRESHOLD, _LARGEST):
        library.mallopt(_MMAP_THRESHOLD, _LARGEST_IN_OLD_VERSIONS)
    library.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST)


def return_freed_memory() -> None:
    """Return freed memory to the system, as far as it can be returned. Without glibc, do nothing."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
