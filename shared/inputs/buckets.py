"""Buckets: few sizes that recur, for compilers and libraries that prepare a program or a kernel for each shape.

Packed tokens (``packing.py``) are padded to a bucket of N tokens. Attention reads one row at a time through a window: L
tokens that contain the row. All shapes in a program follow from N and from the number C of window lengths.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from triglot.shared.arrays import Array, Int32s

SMALLEST = 16
TOKEN_STEPS = 8  # buckets between one power of two and the next; above 128 they add 5% on average, 12% at most
WINDOW_STEPS = 2  # with more, programs take longer to compile; with fewer, attention reads more padding
WINDOW_GROWTH = 4  # the largest window has 32, 128, 512, ... tokens: the first size that holds the longest row


class Windows(NamedTuple):
    """Where the rows are among N packed tokens. A JAX program takes them as one argument.

    ``starts``, ``lengths``: int32 (N,), the start and the length of each row, longest first, then zeros. ``bounds``:
    int32 (C + 1,). There are C window lengths, longest first; windows of length number i read the rows from
    ``bounds[i]`` to ``bounds[i + 1]``.
    """

    starts: Int32s
    lengths: Int32s
    bounds: Int32s


def bucket(number: int, steps: int = TOKEN_STEPS, smallest: int = SMALLEST) -> int:
    """Return ``number`` rounded up to one of at most ``steps`` sizes per power of two, multiples of ``smallest``."""
    octave = 1 << (number - 1).bit_length() >> 1  # the largest power of two below the number
    step = max(octave // steps, smallest)
    return max(-(-number // step) * step, smallest)


@cache
def window_lengths(tokens: int, longest: int) -> tuple[int, ...]:
    """Return the lengths of windows, longest first, for rows of at most ``longest`` of ``tokens`` tokens."""
    rows = range(1, min(tokens, longest) + 1)
    return tuple(sorted({min(bucket(length, WINDOW_STEPS), tokens) for length in rows}, reverse=True))


def lengths_of(windows: Windows, longest: int) -> tuple[int, ...]:
    """Return the C lengths of ``windows``, longest first. ``longest``: as in ``windows_of``."""
    return window_lengths(len(windows.starts), longest)[1 - len(windows.bounds) :]


def windows_of(lengths: Array, tokens: int, longest: int) -> Windows:
    """Return the windows of rows of these lengths, longest first, in a bucket of ``tokens`` tokens.

    ``longest``: the most tokens in a row that the model can read. Windows much longer than the longest row are left
    out, because each window length takes time to compile. The largest window grows in large steps, so that a bucket has
    few programs.
    """
    needed = 2 * SMALLEST
    while needed < lengths[0]:
        needed *= WINDOW_GROWTH
    starts, row_lengths = np.zeros(tokens, np.int32), np.zeros(tokens, np.int32)
    starts[1 : len(lengths)] = lengths[:-1].cumsum()
    row_lengths[: len(lengths)] = lengths
    shorter = [*window_lengths(tokens, min(needed, longest))[1:], 0]
    bounds = [0, *(np.count_nonzero(lengths > length) for length in shorter)]
    return Windows(starts, row_lengths, np.array(bounds, np.int32))
