"""What is timed: a case is one arm on one workload, and a sweep is the cases that the options span."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from .arms import ARMS

WORKLOADS = ("forward", "forward+backward", "training", "generation")
ORDERS = ("padded", "arrival", "sorted")


@dataclass(frozen=True)
class Cell:
    """A piece of work that several arms do, to be compared.

    ``batch`` rows of ``length`` tokens, of which the share ``fill`` is real, on average; ``order`` "padded". Or, for
    the orders "arrival" and "sorted", sentences of real prose, up to ``length`` tokens, ``batch`` at a time, as they
    come or sorted by length; ``fill`` is then the share that came out.
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
    """One arm in one cell. ``copy`` tells an arm from itself, where it is timed twice to see the noise."""

    arm: str
    cell: Cell
    copy: int = 0

    @property
    def id(self) -> str:
        """The case in one word."""
        return f"{self.arm}{'*' * self.copy}/{self.cell.id}"

    def to_dict(self) -> dict[str, Any]:
        """The case as plain JSON types."""
        arm = ARMS[self.arm]
        return {"id": self.id, "arm": self.arm, **asdict(self.cell), "framework": arm.framework, "mode": arm.mode}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Case":
        """The case that ``to_dict`` described."""
        cell = Cell(**{field.name: given[field.name] for field in fields(Cell)})
        return cls(given["arm"], cell, given["id"].split("/")[0].count("*"))


def cells(
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
    """Every combination, the small ones first. A ragged order has no fill of its own, so it takes part once."""
    found = [
        Cell(model, workload, order, dtype, device, batch, length, fill, threads)
        for dtype in dtypes
        for order in orders
        for length in sorted(lengths)
        for batch in sorted(batches)
        for fill in (sorted(fills, reverse=True) if order == "padded" else (1.0,))
    ]
    return list(dict.fromkeys(found))


def digest(case: Case, facts: Mapping[str, Any]) -> str:
    """What a result depends on, as a hash: the case, and ``facts`` about code, weights and environment."""
    content = json.dumps([case.to_dict(), facts], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
