"""The masks of other code, to and from the canonical one: bool, True = may attend, four dimensions (``masks.py``).

A mask has a dialect, what its values mean, and a layout, what its axes are. Neither shows: a square mask of True and
False is as good upside down, and (T, S) as good as (B, S). So both are always said.

Shapes: B batch, H heads, T target length, S source length.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from triglot.shared.arrays import Array, Bools
from triglot.shared.dtypes import FLOATS
from triglot.shared.errors import InputError

MaskDialect = Literal[
    "true_attends", "true_ignores", "one_attends", "add_infinity", "add_1e9", "add_1e4", "add_minimum"
]
MaskLayout = Literal["padding", "queries", "heads", "full"]

LAYOUTS: dict[MaskLayout, str] = {
    "padding": "(B, S)",
    "queries": "(T, S)",
    "heads": "(B * H, T, S)",
    "full": "(B or 1, H or 1, T or 1, S)",
}


@dataclass(frozen=True)
class Meaning:
    """The two values of a dialect, and which dtypes hold them. ``hidden`` None: the least finite one of the dtype."""

    dtypes: Literal["bool", "integers", "floats"]
    attends: float
    hidden: float | None


DIALECTS: dict[MaskDialect, Meaning] = {
    "true_attends": Meaning("bool", True, False),
    "true_ignores": Meaning("bool", False, True),
    "one_attends": Meaning("integers", 1, 0),
    "add_infinity": Meaning("floats", 0.0, -np.inf),
    "add_1e9": Meaning("floats", 0.0, -1e9),
    "add_1e4": Meaning("floats", 0.0, -1e4),
    "add_minimum": Meaning("floats", 0.0, None),
}


def from_dialect(mask: Array, dialect: MaskDialect, layout: MaskLayout, *, heads: int = 1) -> Bools:
    """The canonical mask: (B, 1, 1, S) of "padding", (1, 1, T, S) of "queries", (B, H, T, S) of the other layouts.

    ``heads`` splits the first axis of the layout "heads". The others need none, and with 1 it is (B, T, S).

    Raises:
        InputError: the dialect or the layout is unknown, or ``mask`` does not fit them: its dimensions, its dtype, or
            a value that the dialect does not have, NaN among them.
    """
    meaning = _meaning(dialect)
    _check_layout(layout)
    if not isinstance(mask, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"the mask is a {type(mask).__name__}; expected a NumPy array, so convert it")
    if mask.ndim != {"padding": 2, "queries": 2, "heads": 3, "full": 4}[layout] or not mask.size:
        raise InputError(f"the mask has shape {mask.shape}; expected {LAYOUTS[layout]} in the layout {layout!r}")
    if _kind(mask.dtype) != meaning.dtypes:
        raise InputError(f"the mask is {mask.dtype}; expected {meaning.dtypes} in the dialect {dialect!r}")
    hidden = mask == _hidden(dialect, mask.dtype)
    allowed = mask == meaning.attends
    if not (known := hidden | allowed).all():
        raise InputError(
            f"the mask holds {mask[~known][0]}; expected {meaning.attends} or {_hidden(dialect, mask.dtype)} alone in "
            f"the dialect {dialect!r}"
        )
    if layout == "padding":
        return allowed[:, None, None, :]
    if layout == "queries":
        return allowed[None, None]
    if layout == "heads":
        if heads < 1 or len(allowed) % heads:
            raise InputError(f"the mask has shape {mask.shape}; expected (B * {heads}, T, S) with {heads} heads")
        return allowed.reshape(len(allowed) // heads, heads, *allowed.shape[1:])
    return allowed


def to_dialect(
    allowed: Bools,
    dialect: MaskDialect,
    layout: MaskLayout,
    *,
    shape: tuple[int, int, int, int] | None = None,
    dtype: str = "float32",
) -> Array:
    """The canonical mask ``allowed`` in a dialect and a layout, a new array.

    ``shape`` (B, H, T, S) is what the mask is first broadcast to, for code that does not broadcast itself; None leaves
    it. ``dtype`` is that of the additive dialects; integers are int64.

    Raises:
        InputError: the dialect or the layout is unknown; ``allowed`` is no bool of four dimensions, or does not
            broadcast to ``shape``; the layout lacks an axis along which it differs; ``dtype`` is no float, or cannot
            hold the value of the dialect.
    """
    meaning = _meaning(dialect)
    _check_layout(layout)
    if not isinstance(allowed, np.ndarray) or allowed.dtype != np.bool_ or allowed.ndim != 4 or not allowed.size:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"the canonical mask is {_describe(allowed)}; expected bool (B, H, T, S), True = may attend")
    if dtype not in FLOATS:
        raise InputError(f"the dtype of the mask is {dtype!r}; expected one of {', '.join(FLOATS)}")
    if shape is not None:
        allowed = _broadcast(allowed, shape)
    if layout == "padding":
        allowed = _without((1, 2), allowed, layout)
    elif layout == "queries":
        allowed = _without((0, 1), allowed, layout)
    elif layout == "heads":
        allowed = allowed.reshape(-1, *allowed.shape[2:])
    formats = {"bool": np.dtype(np.bool_), "integers": np.dtype(np.int64), "floats": FLOATS[dtype]}
    chosen = formats[meaning.dtypes]
    return np.where(allowed, np.asarray(meaning.attends, chosen), _hidden(dialect, chosen))


def _meaning(dialect: MaskDialect) -> Meaning:
    if dialect not in DIALECTS:
        raise InputError(f"unknown dialect of masks {dialect!r}; expected one of {', '.join(DIALECTS)}")
    return DIALECTS[dialect]


def _check_layout(layout: MaskLayout) -> None:
    if layout not in LAYOUTS:
        raise InputError(f"unknown layout of masks {layout!r}; expected one of {', '.join(get_args(MaskLayout))}")


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype == np.bool_:
        return "bool"
    if dtype.kind in "iu":
        return "integers"
    return "floats" if dtype in FLOATS.values() else "something else"


def _hidden(dialect: MaskDialect, dtype: np.dtype[Any]) -> Array:
    """What hides, as ``dtype`` holds it: -1e9 is no number of bfloat16, so its code rounds it as this does."""
    hidden = DIALECTS[dialect].hidden
    if hidden is None:
        return np.nextafter(np.asarray(-np.inf, dtype), np.asarray(0, dtype))
    with np.errstate(over="ignore"):
        value = np.asarray(hidden).astype(dtype)
    if np.isinf(value) and not np.isinf(hidden):
        raise InputError(f"{dtype} cannot hold the {hidden} of the dialect {dialect!r}; choose another of the two")
    return value


def _broadcast(allowed: Bools, shape: tuple[int, int, int, int]) -> Bools:
    try:
        return np.broadcast_to(allowed, shape)
    except ValueError as error:
        raise InputError(
            f"the canonical mask {allowed.shape} does not broadcast to {shape}; give (B, H, T, S)"
        ) from error


def _without(axes: tuple[int, ...], allowed: Bools, layout: MaskLayout) -> Bools:
    """Without the axes that the layout lacks; they may be longer than 1, if nothing differs along them."""
    for axis in axes:
        if (allowed != allowed.take([0], axis)).any():
            name = ("batch", "heads", "queries")[axis]
            raise InputError(
                f"the canonical mask {allowed.shape} differs along the {name}; the layout {layout!r}, "
                f"{LAYOUTS[layout]}, cannot say so; choose another"
            )
    return allowed[tuple(0 if axis in axes else slice(None) for axis in range(4))]


def _describe(value: Any) -> str:
    kind = type(value).__name__
    return f"{value.dtype} {value.shape}" if kind == "ndarray" else f"a {kind}"
