"""Compare the weights of a port with those of its original, once their results differ."""

import numpy as np

from triglot.shared import porting
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import TriglotError

from . import Original

_SHOWN = 3  # tensors


def compare_weights(original: Original, checkpoint: Checkpoint) -> str:
    """Return in words how the weights of ``checkpoint`` differ from those in the files of its original.

    Empty if the files cannot be read, such as those of ONNX, or hold tensors of other names or shapes.
    """
    ours, heads = checkpoint.tensors, checkpoint.config.heads_on_top
    config = None if original.has_own_config else checkpoint.config
    try:
        theirs = porting.read(original.path, original.dialect, config, heads).tensors
    except TriglotError:
        return ""
    if {name: tensor.shape for name, tensor in ours.items()} != {name: tensor.shape for name, tensor in theirs.items()}:
        return ""
    distances = {name: _distance(ours[name], theirs[name]) for name in ours}
    different = [name for name, distance in distances.items() if distance != 0]
    if not different:
        same = f"all {len(ours)} weights are those of the original, as Triglot reads its files"
        if original.has_own_config:
            return f"{same}, so compare the configurations (--set, or config=, corrects that of the port)"
        return f"{same}, so the configuration that you passed, or the dialect, may be wrong"
    shown = ", ".join(f"{name} (by up to {distances[name]:.2g})" for name in different[:_SHOWN])
    others = f" and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    return f"{len(different)} of {len(ours)} weights differ from those of the original: {shown}{others}"


def _distance(ours: Array, theirs: Array) -> float:
    """Return the largest difference of two tensors of one shape, once the original has the number format of ours."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = theirs.astype(ours.dtype)
        differences = np.abs(ours.astype(np.float64) - rounded.astype(np.float64))
    same = (ours == rounded) | (np.isnan(ours) & np.isnan(rounded))
    return 0.0 if same.all() else float(differences[~same].max())
