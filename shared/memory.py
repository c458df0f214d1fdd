"""How a process reuses the memory that it has freed."""

import ctypes
import mmap
import os
import platform
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path

# The parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8

_LARGEST = 256 * 2**20  # bytes of an array whose memory is kept
_LARGEST_IN_OLD_VERSIONS = 32 * 2**20  # bytes; old versions of glibc refuse a larger threshold
_NEVER = -1  # trim_threshold: never return memory at the end of the heap
_DEFAULT_MMAP_MAX = 65536  # glibc's default

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_ON_REQUEST = "[madvise]"  # in this file if a process gets huge pages only where it asks for them
_MADV_HUGEPAGE = 14  # from Linux's mman.h
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_NO_OVERCOMMIT = "2"  # in this file if the system promises processes no more memory than it has
_PAGE = 2**12  # bytes
_RESERVE = 3 * 2**29  # bytes of the heap for which a call asks for huge pages
_LARGEST_OF_MALLOPT = 2**31 - 1  # the largest number that mallopt takes

# The variables with which users say what glibc keeps, and the names of the same settings in GLIBC_TUNABLES.
_CHOICES = {
    "MALLOC_TRIM_THRESHOLD_": "trim_threshold",
    "MALLOC_TOP_PAD_": "top_pad",
    "MALLOC_MMAP_THRESHOLD_": "mmap_threshold",
    "MALLOC_MMAP_MAX_": "mmap_max",
}
_HEAPS = {"MALLOC_ARENA_MAX": "arena_max"}  # the same for the number of heaps, which glibc calls arenas


@cache  # a later call would undo the trim threshold that the functions below set
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


def ask_for_huge_pages() -> None:
    """Ask for huge pages for the next 1.5 GiB of the heap: 2 MB, not 4 KB, so that the processor finds them faster.

    With small pages, calls of BERT-base took up to 15% longer on a virtual machine (docs/fast-modes.md). The system
    provides a page only when it is first used. This function calls ``keep_freed_memory``, but then makes glibc keep up
    to 2 GiB of freed memory at the end of the heap, or still all of it after ``keep_freed_memory_of_threads``. A later
    call asks for as much again as the process has used since.

    Call it after the weights of a model are loaded. Huge pages for the weights made neither inference nor training
    faster, and a virtual machine may take long to provide them.

    Do nothing without glibc, or outside of the main thread, to which this heap belongs. Do nothing if the memory that
    the process may reserve is limited, if the system provides huge pages to every process or to none, or if the
    environment says what glibc keeps or whether it asks for huge pages.
    """
    if threading.current_thread() is not threading.main_thread() or not _is_free_to_choose(_CHOICES):
        return
    if not _provides_huge_pages_on_request() or not _can_reserve():
        return
    keep_freed_memory()
    library = ctypes.CDLL(None)
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_size_t
    library.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    library.free.argtypes, library.free.restype = [ctypes.c_size_t], None
    keeps_all = keep_freed_memory_of_threads.cache_info().currsize > 0
    if not keeps_all:
        library.mallopt(_MMAP_MAX, 0)  # so that malloc extends the heap
    address = library.malloc(_RESERVE)
    if not keeps_all:
        library.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
    if address == 0:
        return
    if not keeps_all:
        library.mallopt(_TRIM_THRESHOLD, _LARGEST_OF_MALLOPT)  # otherwise, free would return the memory
    start, stop = -(-address // _PAGE) * _PAGE, (address + _RESERVE) // _PAGE * _PAGE
    library.madvise(start, stop - start, _MADV_HUGEPAGE)
    library.free(address)


def _can_reserve() -> bool:
    """Return whether the process may extend its heap without using up a limit of memory.

    If ``malloc`` failed, glibc would give the main thread another heap, and the thread would go on using that one.
    """
    import resource  # noqa: PLC0415 (Windows has no such module)

    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    if any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits):
        return False  # what is reserved would count towards the limit
    try:
        if _OVERCOMMIT.read_text().strip() == _NO_OVERCOMMIT:
            return False  # it would count towards the limit of all processes together
        mmap.mmap(-1, _RESERVE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return False
    return True


def _provides_huge_pages_on_request() -> bool:
    """Return whether the system provides huge pages only on request, and the user does not set glibc's use of them."""
    if mmap.PAGESIZE != _PAGE or "malloc.hugetlb=" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        return _ON_REQUEST in _HUGE_PAGES.read_text()
    except OSError:
        return False


def _is_free_to_choose(choices: Mapping[str, str]) -> bool:
    """Return whether this is glibc, and the environment makes none of these choices."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    chosen = any(variable in os.environ or f"malloc.{name}=" in tunables for variable, name in choices.items())
    return not chosen and platform.libc_ver()[0] == "glibc"


def return_freed_memory() -> None:
    """Return freed memory to the system, as far as it can be returned.

    Do nothing without glibc, or after ``keep_freed_memory``, because the process then keeps it on purpose.
    """
    if platform.libc_ver()[0] == "glibc" and not keep_freed_memory.cache_info().currsize:
        ctypes.CDLL(None).malloc_trim(0)
