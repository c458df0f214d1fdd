"""What is timed: a cell is a piece of work, and a case is one arm in one cell."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .arms import ARMS


@dataclass(frozen=True)
class Cell:
    """A piece of work that several arms do, so that they can be compared.

    With ``order`` "padded", a call computes one batch of ``batch`` rows, ``length`` tokens long; the share ``fill`` of
    the tokens is real. With "arrival" or "sorted" it computes several batches of English sentences, at most ``length``
    tokens long, as they come or sorted by length; ``fill`` is then 1, and the measured share is in the result.
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
        """The cell in one word."""
        shape = f"{self.batch}x{self.length}"
        shape += f"x{self.fill:g}" if self.order == "padded" else f"-{self.order}"
        return f"{self.model}/{self.workload}/{shape}/{self.dtype}/{self.device}/{self.threads}"


@dataclass(frozen=True)
class Case:
    """One arm in one cell. A twin is the second worker of the baseline; its id has a ``*`` after the arm."""

    arm: str
    cell: Cell
    is_twin: bool = False

    @property
    def id(self) -> str:
        """The case in one word."""
        return f"{self.arm}{'*' if self.is_twin else ''}/{self.cell.id}"

    def to_dict(self) -> dict[str, Any]:
        """Return the case as plain JSON types."""
        arm = ARMS[self.arm]
        return {"id": self.id, "arm": self.arm, **asdict(self.cell), "framework": arm.framework, "mode": arm.mode}

    def digest(self, facts: Mapping[str, Any]) -> str:
        """Return a hash of all that a result depends on: the case, and ``facts`` about code, weights and machine."""
        content = json.dumps([self.to_dict(), facts], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


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
