"""Where a port and its original differ: in their weights, or in something that no tensor shows."""

import numpy as np

from triglot.shared import porting
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import TriglotError

from . import Original

_SHOWN = 3  # tensors


def compare_weights(original: Original, checkpoint: Checkpoint) -> str:
    """Return in words how the weights of ``checkpoint`` differ from those in the files of its original.

    Empty if the files cannot be read as weights of this configuration; those of ONNX cannot.
    """
    if original.dialect not in porting.DIALECTS:
        return ""
    ours, heads = checkpoint.tensors, checkpoint.config.heads_on_top
    try:
        theirs = porting.read(original.path, original.dialect, checkpoint.config, heads).tensors
    except TriglotError:  # they are not weights of this model; the results differ anyway
        return ""
    distances = {name: _distance(ours[name], theirs[name]) for name in ours}
    different = [name for name, distance in distances.items() if distance != 0]
    if not different:
        return f"all {len(ours)} weights are those of the original, so their configurations differ (see --set)"
    shown = ", ".join(f"{name} (by up to {distances[name]:.2g})" for name in different[:_SHOWN])
    others = f" and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    return f"{len(different)} of {len(ours)} weights differ from those of the original: {shown}{others}"


def _distance(ours: Array, theirs: Array) -> float:
    """Return the largest difference of two tensors of one shape, once the original has the number format of ours."""
    with np.errstate(over="ignore"):
        rounded = theirs.astype(ours.dtype)
    return 0.0 if np.array_equal(ours, rounded) else float(np.abs(ours - rounded.astype(np.float64)).max())
