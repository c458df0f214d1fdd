"""Where an implementation first goes wrong."""

from collections.abc import Iterable, Sequence

from .checks import API, LOCAL_CHECKS, MASKS
from .report import Divergence, Row


def first_divergence(rows: Iterable[Row], order: Sequence[str]) -> Divergence | None:
    """The first value, in the order of the computation, that broke its budget; None if there is none.

    A step that was fed with given values and still broke it is wrong itself: that is "local", and beats every value
    that is wrong end to end, for those may have inherited their error. A wrong mask comes before everything.
    A method that returns what the model did not compute is named when the model itself is right.
    """
    diverged = [row for row in rows if row.verdict == "diverged"]
    if not diverged:
        return None
    place = {name: index for index, name in enumerate(order)}
    # Nothing comes before the first value that it could inherit from.
    local = [row.name for row in diverged if row.check in (MASKS, *LOCAL_CHECKS) or row.name == order[0]]
    candidates = local or [row.name for row in diverged if row.check != API] or [row.name for row in diverged]
    # Masks, and values that no reference knows, have no place in the order of the computation: they come first.
    first = min(candidates, key=lambda name: place.get(name, -1))
    return Divergence(first, "local" if local or first.startswith(API) else "inherited")
