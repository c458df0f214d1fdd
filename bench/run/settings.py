"""How a sweep measures, and in what surroundings its workers run."""

from dataclasses import dataclass
from typing import Any

# What the memory allocator of glibc does with large blocks that were freed. By default it may give them back to the
# system, and take them from it again for the next call: whether it does is a matter of how the blocks happen to lie, so
# it differs from process to process. PyTorch's eager mode was seen 25 % slower for the whole life of a process, and the
# same arm 19 % off from itself. To keep them makes all arms alike, and them fast. Large pages do the same for where the
# blocks lie in the machine's memory.
ALLOCATORS = {
    "keep": {name: str(2**32) for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")}
    | {"MALLOC_TOP_PAD_": str(2**28), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "default": {},
}

# JAX would take three quarters of a GPU's memory for each of the workers that are alive at once.
SHARED_DEVICE = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@dataclass(frozen=True)
class Settings:
    """How long is measured. ``seconds``: of samples for each case, over ``rounds``. ``pause``: between two arms.

    In the pause, threads that still spin for work that does not come end that. ``together``: workers beside the
    reference. ``again``: the reference runs in a second worker too. ``allocator``: see ``ALLOCATORS``.
    ``memory_limit_mb``: mebibytes that each worker may write to; None: no limit.
    """

    seconds: float = 1.5
    rounds: int = 48
    warm_up: float = 2.0
    pause: float = 0.02
    together: int = 5
    time_limit: float = 600.0
    seed: int = 0
    again: bool = True
    allocator: str = "keep"
    memory_limit_mb: int | None = None

    def measured_with(self) -> dict[str, Any]:
        """What the numbers depend on: all but the limits, beyond which a case fails, and is tried again."""
        return {name: value for name, value in vars(self).items() if name not in ("time_limit", "memory_limit_mb")}
