"""How long the groups of a cell may go on after the rounds that were planned, where the machine is unsteady."""

from time import monotonic

# Seconds. A default sweep of MiniLM has one cell, and five minutes, of which the rooflines take half of one.
LEAST, CELL = 12.0, 240.0


class Spare:
    """The time for more rounds, of a cell that begins now.

    There are ``LEAST`` seconds at least, of which each group has its share; and more, if at the pace so far the cell
    would be over in less than ``CELL`` seconds: to compare two arms takes half a minute, and may well take two, but a
    table of all of them on a slow machine has no such time.
    """

    def __init__(self) -> None:
        self._begin = monotonic()
        self._left = LEAST

    def of_group(self, started: int, left: int, groups: int) -> float:
        """Seconds for a group, all of whose planned rounds are over.

        ``started``: arms so far, and ``left`` for later groups, of which, with this one, there are ``groups``.
        """
        elapsed = monotonic() - self._begin
        over = elapsed + elapsed / started * left
        return max(self._left, CELL - over) / groups

    def spend(self, seconds: float) -> None:
        """Note what a group has used."""
        self._left -= seconds
