"""What is timed, and how: a cell is a piece of work, a case is one arm in one cell, and settings hold for all cases."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WORKLOADS = ("forward", "forward+backward", "training", "generation", "embed")
ORDERS = ("padded", "arrival", "sorted")

# What glibc does with large blocks that were freed. By default it may return them to the system and fetch them again
# for the next call, and a benchmark has to show what that costs. "keep" keeps them, in one heap for all threads and on
# large pages, for users who set the same variables.
ALLOCATORS = {
    "default": {},
    "keep": {name: str(2**32) for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")}
    | {"MALLOC_ARENA_MAX": "1", "MALLOC_TOP_PAD_": str(2**28), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
}


@dataclass(frozen=True)
class Cell:
    """A piece of work that several arms do, so that they can be compared.

    With ``order`` "padded", a call computes one batch of ``batch`` rows, ``length`` tokens long; the share ``fill`` of
    the tokens is real. With "arrival" or "sorted" it computes several batches of English sentences, at most ``length``
    tokens long, as they come or sorted by length; ``fill`` is then 1, and the measured share is in the result.

    With ``workload`` "embed", a call turns ``batch`` sentences into vectors, tokenization included. Each arm divides
    them into batches in its own way; ``order`` is "arrival".
    """

    model: str
    workload: str
    order: str
    dtype: str
    device: str
    batch: int
    length: int
    fill: float
    threads: int

    @property
    def id(self) -> str:
        """The cell as one string."""
        shape = f"{self.batch}x{self.length}"
        shape += f"x{self.fill:g}" if self.order == "padded" else f"-{self.order}"
        return f"{self.model}/{self.workload}/{shape}/{self.dtype}/{self.device}/{self.threads}"


@dataclass(frozen=True)
class Case:
    """One arm in one cell. A twin is the baseline, timed once more; its id has a ``*`` after the arm."""

    arm: str
    cell: Cell
    is_twin: bool = False

    @property
    def id(self) -> str:
        """The case as one string."""
        return f"{self.arm}{'*' if self.is_twin else ''}/{self.cell.id}"


def cells_of_grid(
    model: str,
    workload: str,
    *,
    batches: Sequence[int],
    lengths: Sequence[int],
    fills: Sequence[float],
    orders: Sequence[str],
    dtypes: Sequence[str],
    device: str,
    threads: int,
) -> list[Cell]:
    """Return a cell for every combination, small ones first. Orders of sentences have no fill and occur once."""
    cells = [
        Cell(model, workload, order, dtype, device, batch, length, fill, threads)
        for dtype in dtypes
        for order in orders
        for length in sorted(lengths)
        for batch in sorted(batches)
        for fill in (sorted(fills, reverse=True) if order == "padded" else (1.0,))
    ]
    return list(dict.fromkeys(cells))


@dataclass(frozen=True)
class Settings:
    """How a sweep measures.

    ``seconds`` of samples are taken for each case, spread over ``rounds``. The rounds are spread over ``processes``,
    one after the other. In each round, ``uncounted`` seconds of calls come before the samples, at least one call.
    ``together`` workers are alive beside the baseline. ``again`` starts a twin of the baseline.
    ``allocator`` is a key of ``ALLOCATORS``. ``memory_limit_mb`` is the private memory in MiB that a worker may write
    to; None sets no limit. ``quick`` leaves out the roofline, the extra rounds and the preparation of PyTorch's
    compiler.
    """

    seconds: float = 1.5
    rounds: int = 48
    processes: int = 5
    warm_up: float = 2.0
    # In the first 0.06 seconds after a pause, short calls of JAX took 1.6 times as long as later. In the first 0.25
    # seconds, calls of PaddlePaddle in mode "jit" took 1.1 times as long.
    uncounted: float = 0.25
    quick: bool = False
    together: int = 5
    time_limit: float = 600.0
    seed: int = 0
    again: bool = True
    allocator: str = "default"
    memory_limit_mb: int | None = None

    def affecting_results(self) -> dict[str, Any]:
        """Return the settings that change the numbers: all except the limits, which only make a case fail."""
        return {name: value for name, value in vars(self).items() if name not in ("time_limit", "memory_limit_mb")}

    def worker_variables(self) -> dict[str, str]:
        """Return the environment variables of every process that computes.

        Arms run as in a user's own script, so nothing else is set but the thread count, and the caches that make cold
        starts cold.
        """
        return ALLOCATORS[self.allocator]
