"""Masks of other libraries, converted to and from the canonical mask: bool (B, H, T, S), True = may attend.

A mask has a format, what its values mean, and a layout, what its axes mean. Neither can be recognised: a square bool
mask is as plausible inverted, and a mask (T, S) could be a mask (B, S). So the caller always names both.

Shapes: B batch, H heads, T target length, S source length.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from triglot.shared.arrays import FLOATS, Array, Bools
from triglot.shared.errors import InputError

MaskFormat = Literal["true_attends", "true_ignores", "one_attends", "add_infinity", "add_1e9", "add_1e4", "add_minimum"]
MaskLayout = Literal["padding", "queries", "heads", "full"]

LAYOUTS: dict[MaskLayout, str] = {
    "padding": "(B, S)",
    "queries": "(T, S)",
    "heads": "(B * H, T, S)",
    "full": "(B or 1, H or 1, T or 1, S)",
}
_DIMENSIONS = {"padding": 2, "queries": 2, "heads": 3, "full": 4}


@dataclass(frozen=True)
class Values:
    """The two values of a format, and the dtypes that hold them. ``hidden`` None: the lowest finite number."""

    dtypes: Literal["bool", "integers", "floats"]
    attends: float
    hidden: float | None


FORMATS: dict[MaskFormat, Values] = {
    "true_attends": Values("bool", True, False),
    "true_ignores": Values("bool", False, True),
    "one_attends": Values("integers", 1, 0),
    "add_infinity": Values("floats", 0.0, -np.inf),
    "add_1e9": Values("floats", 0.0, -1e9),
    "add_1e4": Values("floats", 0.0, -1e4),
    "add_minimum": Values("floats", 0.0, None),
}


def import_mask(mask: Array, mask_format: MaskFormat, layout: MaskLayout, *, heads: int = 1) -> Bools:
    """Return the canonical mask: (B, 1, 1, S) from "padding", (1, 1, T, S) from "queries", else (B, H, T, S).

    ``heads`` splits the first axis of the layout "heads"; with 1 that layout is (B, T, S).

    Raises:
        InputError: the format or the layout is unknown, or ``mask`` does not fit them: its shape, its dtype, or a value
            that the format does not have, such as NaN.
    """
    values = _check_names(mask_format, layout)
    if not isinstance(mask, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"the mask is a {type(mask).__name__}; expected a NumPy array, so convert it")
    if mask.ndim != _DIMENSIONS[layout] or not mask.size:
        raise InputError(f"the mask has shape {mask.shape}; expected {LAYOUTS[layout]} in the layout {layout!r}")
    if _kind(mask.dtype) != values.dtypes:
        raise InputError(f"the mask is {mask.dtype}; expected {values.dtypes} in the format {mask_format!r}")
    hidden = _hidden(mask_format, mask.dtype)
    allowed = mask == values.attends
    if not (valid := (mask == hidden) | allowed).all():
        raise InputError(
            f"the mask holds {mask[~valid][0]}; expected only {values.attends} and {hidden} in the format "
            f"{mask_format!r}"
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


def export_mask(
    allowed: Bools,
    mask_format: MaskFormat,
    layout: MaskLayout,
    *,
    shape: tuple[int, int, int, int] | None = None,
    dtype: str = "float32",
) -> Array:
    """Return the canonical mask ``allowed`` in a format and a layout, as a new array.

    ``shape`` (B, H, T, S): broadcast the mask to this first, for code that does not broadcast. ``dtype``: the dtype of
    the additive formats; integers are int64.

    Raises:
        InputError: the format or the layout is unknown; ``allowed`` is not bool with four dimensions, or does not
            broadcast to ``shape``; the layout lacks an axis along which the mask differs; ``dtype`` is not a float
            dtype, or cannot hold the value of the format.
    """
    values = _check_names(mask_format, layout)
    if not isinstance(allowed, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"the canonical mask is a {type(allowed).__name__}; expected bool (B, H, T, S)")
    if allowed.dtype != np.bool_ or allowed.ndim != 4 or not allowed.size:
        raise InputError(
            f"the canonical mask is {allowed.dtype} {allowed.shape}; expected bool (B, H, T, S), True = may attend"
        )
    if dtype not in FLOATS:
        raise InputError(f"the dtype of the mask is {dtype!r}; expected one of {', '.join(FLOATS)}")
    if shape is not None:
        try:
            allowed = np.broadcast_to(allowed, shape)
        except ValueError as error:
            raise InputError(
                f"the canonical mask {allowed.shape} does not broadcast to {shape}; pass (B, H, T, S)"
            ) from error
    if layout == "padding":
        allowed = _drop_axes((1, 2), allowed, layout)
    elif layout == "queries":
        allowed = _drop_axes((0, 1), allowed, layout)
    elif layout == "heads":
        allowed = allowed.reshape(-1, *allowed.shape[2:])
    dtypes = {"bool": np.dtype(np.bool_), "integers": np.dtype(np.int64), "floats": FLOATS[dtype]}
    result_dtype = dtypes[values.dtypes]
    return np.where(allowed, np.asarray(values.attends, result_dtype), _hidden(mask_format, result_dtype))


def _check_names(mask_format: MaskFormat, layout: MaskLayout) -> Values:
    if mask_format not in FORMATS:
        raise InputError(f"unknown mask format {mask_format!r}; expected one of {', '.join(FORMATS)}")
    if layout not in LAYOUTS:
        raise InputError(f"unknown mask layout {layout!r}; expected one of {', '.join(LAYOUTS)}")
    return FORMATS[mask_format]


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype == np.bool_:
        return "bool"
    if dtype.kind in "iu":
        return "integers"
    return "floats" if dtype in FLOATS.values() else "something else"


def _hidden(mask_format: MaskFormat, dtype: np.dtype[Any]) -> Array:
    """Return the hiding value as ``dtype`` holds it: bfloat16 has no -1e9, and rounds it as its users' code does."""
    hidden = FORMATS[mask_format].hidden
    if hidden is None:
        return np.nextafter(np.asarray(-np.inf, dtype), np.asarray(0, dtype))
    with np.errstate(over="ignore"):
        value = np.asarray(hidden).astype(dtype)
    if np.isinf(value) and not np.isinf(hidden):
        raise InputError(f"{dtype} cannot hold {hidden} of the format {mask_format!r}; choose another dtype or format")
    return value


def _drop_axes(axes: tuple[int, ...], allowed: Bools, layout: MaskLayout) -> Bools:
    """Drop the axes that the layout lacks. They may be longer than 1 if nothing differs along them."""
    for axis in axes:
        if (allowed != allowed.take([0], axis)).any():
            name = ("batch", "heads", "queries")[axis]
            raise InputError(
                f"the canonical mask {allowed.shape} differs along the {name}, an axis that the layout {layout!r} "
                f"{LAYOUTS[layout]} lacks; choose another layout"
            )
    return allowed[tuple(0 if axis in axes else slice(None) for axis in range(4))]
