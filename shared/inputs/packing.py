"""Packing: the real tokens of a padded batch, one after the other, so that padding costs little.

Linear layers, norms and embeddings treat every token alike, so they run on the packed tokens, (N, ...). Attention needs
rows, so it runs on groups of rows of similar length, each padded to its longest row.

Shapes: B batch, S length, N real tokens in the batch; in a group, G rows of at most L tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from triglot.shared.arrays import Array, Bools
from triglot.shared.model.config import ModelConfig

# The number formats that the packed encoders support. In others they would not be faster.
DTYPES = ("float32", "bfloat16")

# The most rows in a group, unless more have exactly the same length. With fewer, attention is called too often; with
# more, too much padding is computed. In PaddlePaddle, the number of groups is limited instead.
MOST_ROWS = 16


def can_pack(config: ModelConfig, device: str, dtype: str) -> bool:
    """Return whether a model can run on packed tokens: on a CPU, an encoder whose padding contributes nothing.

    Mode "compiled" runs its forward pass on packed tokens. Mode "jit" runs only the loss and its gradients on them, in
    float32.
    """
    return config.kind == "encoder" and config.masking == "exclude" and device == "cpu" and dtype in DTYPES


@dataclass(frozen=True)
class Group:
    """Rows that are packed one after the other, from ``start`` to ``stop``.

    ``valid``: bool (G, L), True for real tokens; None if all are, so that the group needs no padding. ``places``: for
    each of the G * L tokens, its place in the group. Padding gets the place of the first token of its own row, so that
    a row never sees the numbers of another one.
    """

    start: int
    stop: int
    rows: int
    length: int
    valid: Bools | None
    places: Array | None


@dataclass(frozen=True)
class Packing:
    """Where the N real tokens of a batch are: their ``tokens``, indices into B * S, and ``positions``, in the row.

    The rows are ordered by length, longest first. ``lengths``: the number of real tokens of each row.
    """

    tokens: Array
    positions: Array
    lengths: Array

    def groups(self, most_rows: int = MOST_ROWS, most_groups: int | None = None) -> tuple[Group, ...]:
        """Divide the rows into groups.

        A group has every row that is as long as its longest, and shorter rows, at least half as long, up to
        ``most_rows`` in all. ``most_groups``: the last of them takes all remaining rows.
        """
        return tuple(_groups(self.lengths, most_rows, most_groups))


def pack(valid: Bools, *, skip_padding: bool) -> Packing:
    """Return the packing of a batch. ``valid``: bool (B, S), True for real tokens, at least one in each row.

    ``skip_padding``: the position of a token is the number of real tokens before it, instead of its place in the row.
    """
    length = valid.shape[1]
    lengths = valid.sum(axis=1)
    order = np.argsort(-lengths, kind="stable")
    ordered = valid[order]
    row, place = np.nonzero(ordered)
    positions = (ordered.cumsum(axis=1) - 1)[row, place] if skip_padding else place
    return Packing(order[row] * length + place, positions, lengths[order])


def _groups(lengths: Array, most_rows: int, most_groups: int | None) -> Iterator[Group]:
    """Yield the groups of rows of these lengths, longest first."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    first = number = 0
    while first < len(lengths):
        number += 1
        longest = int(lengths[first])
        equal = int(np.count_nonzero(lengths[first:] == longest))
        similar = int(np.count_nonzero(2 * lengths[first : first + most_rows] >= longest))
        stop = len(lengths) if number == most_groups else first + max(equal, similar)
        own = lengths[first:stop]
        span = int(starts[first]), int(starts[stop])
        if own[-1] == longest:
            yield Group(*span, len(own), longest, None, None)
        else:
            valid = np.arange(longest) < own[:, None]
            begin: Array = (starts[first:stop] - starts[first])[:, None]
            places: Array = np.where(valid, begin + np.arange(longest), begin)
            yield Group(*span, len(own), longest, valid, places.ravel())
        first = stop
