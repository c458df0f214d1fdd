"""Conversion of weights to another number format, and what is lost by it."""

from dataclasses import dataclass, replace

import numpy as np

from triglot.shared.arrays import FLOATS, LARGEST_BFLOAT16, LARGEST_FLOAT16, Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.checkpoint.checksums import DeferredTensors, stand_in, without_verifying
from triglot.shared.choices import DTYPES
from triglot.shared.errors import PortingError

from .dialects.table import UNCHANGED

_BLOCK = 1 << 20  # numbers
_LARGEST = {
    FLOATS["float32"]: np.float64(np.finfo(np.float32).max),
    FLOATS["float16"]: np.float64(LARGEST_FLOAT16),
    FLOATS["bfloat16"]: np.float64(LARGEST_BFLOAT16),
}


@dataclass(frozen=True)
class Losses:
    """What a conversion changes, in numbers of ``total``.

    ``rounded`` ones change by at most ``largest_error`` of their size, ``to_zero`` ones are below the smallest number
    of the format, and ``clamped`` ones beyond its largest.
    """

    total: int = 0
    rounded: int = 0
    largest_error: float = 0.0
    to_zero: int = 0
    clamped: int = 0

    def __add__(self, other: "Losses") -> "Losses":
        return Losses(
            self.total + other.total,
            self.rounded + other.rounded,
            max(self.largest_error, other.largest_error),
            self.to_zero + other.to_zero,
            self.clamped + other.clamped,
        )

    def describe(self) -> str:
        """Return the losses in words."""
        if not self.rounded + self.to_zero + self.clamped:
            return "every number is kept exactly"
        parts = [
            f"{self.rounded:,} of {self.total:,} numbers are rounded, by at most {self.largest_error:.1e} of their size"
        ]
        parts += [f"{self.to_zero:,} become 0"] * bool(self.to_zero)
        parts += [f"{self.clamped:,} become the largest number"] * bool(self.clamped)
        return ", ".join(parts)


def convert(checkpoint: Checkpoint, dtype: str, *, allow_lossy: bool = False) -> tuple[Checkpoint, Losses]:
    """Return the checkpoint with its tensors in ``dtype``, and what is lost. A training state is left out.

    Each tensor is converted when it is asked for. NaN and infinity stay what they are.

    Raises:
        PortingError: the dtype is unknown, or a number is too large for it and ``allow_lossy`` is False. If it is True,
            such a number becomes the largest one of the format.
    """
    if dtype not in DTYPES:
        raise PortingError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    losses = Losses()
    for name, tensor in checkpoint.tensors.items():
        lost = _losses(tensor, FLOATS[dtype])
        if lost.clamped and not allow_lossy:
            raise PortingError(
                f"{name} holds {lost.clamped:,} numbers that are too large for {dtype}; choose another dtype, or make "
                "them the largest number of the format (allow_lossy=True, or --allow-lossy)"
            )
        losses += lost
    left_out = dict(checkpoint.left_out)
    if checkpoint.training:
        left_out["the training state"] = "it belongs to the weights before they were converted"
    tensors, final = checkpoint.tensors, FLOATS[dtype]
    before = without_verifying(tensors)
    unread = {name: stand_in(final, before[name].shape) for name in tensors}
    transforms = dict(checkpoint.transforms)
    for name, tensor in before.items():
        if tensor.dtype != final:
            earlier = transforms.get(name, UNCHANGED)
            cast = f"{tensor.dtype} to {dtype}"
            transforms[name] = cast if earlier == UNCHANGED else f"{earlier}, {cast}"
    cast_tensors = DeferredTensors(unread, lambda name: _cast(tensors[name], final))
    converted = replace(checkpoint, tensors=cast_tensors, training=None, left_out=left_out, transforms=transforms)
    return converted, losses


def _cast(tensor: Array, dtype: "np.dtype[np.generic]") -> Array:
    """Return the tensor in ``dtype``; finite numbers stay finite."""
    if tensor.dtype == dtype:
        return tensor
    with np.errstate(over="ignore"):
        cast = tensor.astype(dtype)
    overflowed = np.isfinite(tensor) & ~np.isfinite(cast)
    if overflowed.any():
        cast[overflowed] = np.copysign(_LARGEST[dtype], tensor[overflowed].astype(np.float64)).astype(dtype)
    return cast


def _losses(tensor: Array, dtype: "np.dtype[np.generic]") -> Losses:
    if tensor.dtype == dtype:
        return Losses(tensor.size)
    numbers, losses = tensor.reshape(-1), Losses()
    for start in range(0, numbers.size, _BLOCK):  # a table in float64 would take gigabytes
        exact = numbers[start : start + _BLOCK]
        with np.errstate(over="ignore"):
            cast = exact.astype(dtype).astype(np.float64)
        exact = exact.astype(np.float64)
        clamped = np.isfinite(exact) & ~np.isfinite(cast)
        to_zero = (cast == 0) & (exact != 0)
        rounded = np.isfinite(cast) & (cast != exact) & ~to_zero
        error = np.abs(cast[rounded] - exact[rounded]) / np.abs(exact[rounded])
        losses += Losses(
            exact.size, int(rounded.sum()), float(error.max(initial=0)), int(to_zero.sum()), int(clamped.sum())
        )
    return losses
