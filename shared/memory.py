"""How a process reuses the memory that it has freed."""

import ctypes
import os
import platform
from collections.abc import Mapping
from functools import cache

# The parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8

_LARGEST = 256 * 2**20  # bytes of an array whose memory is kept
_LARGEST_IN_OLD_VERSIONS = 32 * 2**20  # bytes; old versions of glibc refuse a larger threshold
_NEVER = -1  # trim_threshold: never return memory at the end of the heap

# The variables with which users say what glibc keeps, and the names of the same settings in GLIBC_TUNABLES.
_CHOICES = {
    "MALLOC_TRIM_THRESHOLD_": "trim_threshold",
    "MALLOC_TOP_PAD_": "top_pad",
    "MALLOC_MMAP_THRESHOLD_": "mmap_threshold",
    "MALLOC_MMAP_MAX_": "mmap_max",
}
_HEAPS = {"MALLOC_ARENA_MAX": "arena_max"}  # the same for the number of heaps, which glibc calls arenas


@cache  # a later call would undo the trim threshold of keep_freed_memory_of_threads
def keep_freed_memory() -> None:
    """Make glibc keep the memory of freed arrays, up to 512 MB at the end of the heap, and use it for new ones.

    By default, glibc may return the memory of large arrays to the system. The system then has to clear each page
    again for the next array, in every call of a model: that takes up to a quarter of the time of an encoder.

    This applies to the whole process, except that threads with a heap of their own still return arrays of more than 64
    MB. Other processes cannot use the memory that it keeps. Without glibc, or if the environment says what glibc shall
    keep, do nothing.
    """
    if _is_free_to_choose(_CHOICES):
        library = ctypes.CDLL(None)
        if not library.mallopt(_MMAP_THRESHOLD, _LARGEST):
            library.mallopt(_MMAP_THRESHOLD, _LARGEST_IN_OLD_VERSIONS)
        library.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST)


@cache
def keep_freed_memory_of_threads() -> None:
    """Make glibc keep all memory that the process frees, in one heap for all threads that start later.

    JAX needs this: it allocates memory in threads of its own, and stores the intermediate results of a training step
    in one array of hundreds of MB. A thread with a heap of its own returns any array of more than 64 MB when it is
    freed.

    Call it before other threads have allocated memory, because a new thread may get the heap of an older one. Threads
    that allocate at the same time wait for one another. Without glibc, or if the environment says what glibc shall
    keep, do nothing. If the environment says how many heaps (arenas) there shall be, leave their number as it is.
    """
    if _is_free_to_choose(_CHOICES):
        library = ctypes.CDLL(None)
        if _is_free_to_choose(_HEAPS):
            library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_MAX, 0)  # large arrays go into the heap, too
        library.mallopt(_TRIM_THRESHOLD, _NEVER)


def _is_free_to_choose(choices: Mapping[str, str]) -> bool:
    """Return whether this is glibc, and the environment makes none of these choices."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    chosen = any(variable in os.environ or f"malloc.{name}=" in tunables for variable, name in choices.items())
    return not chosen and platform.libc_ver()[0] == "glibc"


def return_freed_memory() -> None:
    """Return freed memory to the system, as far as it can be returned. Without glibc, do nothing."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
