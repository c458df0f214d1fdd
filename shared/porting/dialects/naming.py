"""Tables of names with a placeholder for the layer: how the articles' dialects declare theirs.

``N`` in a canonical name stands for the number of a layer, from 0. In a name of the dialect, ``{index}`` is that
number and ``{count}`` counts from 1. ``{first_is_l}`` counts from 1 too, but the first is the letter l, as in article
000.
"""

import re
from collections.abc import Mapping

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_PROJECTIONS = ("query", "key", "value", "output")


def native_name(table: Mapping[str, str], canonical: str) -> str | None:
    """Return the dialect's name of one parameter, or None if the table does not have it."""
    layer = _LAYER.search(canonical)
    pattern = table.get(_LAYER.sub(".layers.N.", canonical))
    if pattern is None or layer is None:
        return pattern
    index = int(layer[1])
    return pattern.format(index=index, count=index + 1, first_is_l=index + 1 if index else "l")


def table_of(modules: Mapping[str, str], linear: Mapping[str, str], norm: Mapping[str, str]) -> dict[str, str]:
    """Return the names of all leaves of ``modules``. Canonical names that end in .norm are norms, the others linear."""
    return {
        f"{module}.{leaf}": native_module + native_leaf
        for module, native_module in modules.items()
        for leaf, native_leaf in (norm if module.endswith(".norm") else linear).items()
    }


def attention(path: str, native_path: str, native_projections: tuple[str, ...]) -> dict[str, str]:
    """Return the names of the four projections of an attention module."""
    pairs = zip(_PROJECTIONS, native_projections, strict=True)
    return {f"{path}.{projection}": f"{native_path}{native}" for projection, native in pairs}
