"""Position tables, computed in float64. Each implementation rounds them once, to its own dtype."""

from dataclasses import dataclass, field
from functools import cache

import numpy as np

from triglot.shared.arrays import Float64s


@cache
def sinusoidal(length: int, hidden_size: int) -> Float64s:
    """Return sines in the even and cosines in the odd dimensions, (length, D).

    Dimensions 2i and 2i + 1 share the angle ``position / 10000^(2i / D)`` ("Attention is all you need", section 3.5).
    The table is read-only.
    """
    position = np.arange(length, dtype=np.float64)[:, None]
    pair = np.arange(0, hidden_size, 2, dtype=np.float64)
    angle = position / 10000.0 ** (pair / hidden_size)
    table = np.empty((length, hidden_size))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle[:, : hidden_size // 2])
    table.setflags(write=False)
    return table


@cache
def sinusoidal_per_dimension(length: int, hidden_size: int) -> Float64s:
    """Return sines in the even and cosines in the odd dimensions, (length, D), each with its own angle; article 000.

    Dimension i has the angle ``position / 10000^(i / D)``. The table is read-only.
    """
    dimension = np.arange(hidden_size, dtype=np.float64)
    angle = np.arange(length, dtype=np.float64)[:, None] / 10000.0 ** (dimension / hidden_size)
    table = np.where(dimension % 2 == 0, np.sin(angle), np.cos(angle))
    table.setflags(write=False)
    return table


TABLES = {"sinusoidal": sinusoidal, "sinusoidal_per_dimension": sinusoidal_per_dimension}


@dataclass(frozen=True)
class Table:
    """A position table as a constant of a model, ``array`` (max_length, D). No framework takes it for a parameter.

    The array is a writeable copy, because PyTorch warns about read-only arrays.
    """

    name: str
    max_length: int
    hidden_size: int
    array: Float64s = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "array", TABLES[self.name](self.max_length, self.hidden_size).copy())
