"""Compare the weights of a port with those of its original. Results can agree although weights differ."""

from collections.abc import Sequence

import numpy as np

from triglot.shared import porting
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import TriglotError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import parameters

from . import Original

_SHOWN = 3  # tensors


def compare_weights(original: Original, checkpoint: Checkpoint, *, results_differ: bool) -> str:
    """Return in words how the weights of ``checkpoint`` differ from those in the files of its original.

    Return an empty string if neither the weights nor the results differ, and for ONNX, whose files Triglot does not
    read.
    """
    if original.dialect == "onnx":
        return ""
    config = None if original.has_own_config else checkpoint.config
    try:
        read = porting.read(original.path, original.dialect, config, checkpoint.config.heads_on_top)
        unlike = _unlike(checkpoint.config, read.config)
        if unlike:
            return f"weights that only one side has, or in other shapes: {_listed(unlike)}"
        distances = {name: _distance(tensor, read.tensors[name]) for name, tensor in checkpoint.tensors.items()}
    except TriglotError as error:
        return f"the weights were not compared: {error}"
    different = [f"{name} (by up to {distance:.2g})" for name, distance in distances.items() if distance != 0]
    number = len(distances)
    if different:
        hidden = "" if results_differ else "; no compared result shows it"
        return f"{len(different)} of {number} weights differ from those of the original: {_listed(different)}{hidden}"
    if not results_differ:
        return ""
    advice = "compare the configurations, and correct that of the port with --set (in Python, config=)"
    if not original.has_own_config:
        advice = "check the configuration that you passed, and the dialect"
    return f"all {number} weights equal those of the original, as Triglot reads its files; {advice}"


def _unlike(port: ModelConfig, original: ModelConfig) -> list[str]:
    """Return in words which weights only one of two configurations has, or has in other shapes."""
    port_weights, original_weights = parameters(port), parameters(original)
    unlike = [f"{name} (only in the port)" for name in port_weights if name not in original_weights]
    unlike += [f"{name} (only in the original)" for name in original_weights if name not in port_weights]
    for name in port_weights.keys() & original_weights.keys():
        shape, expected = port_weights[name].shape, original_weights[name].shape
        if shape != expected:
            unlike.append(f"{name} ({shape} in the port, {expected} in the original)")
    return sorted(unlike)


def _listed(words: Sequence[str]) -> str:
    others = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return f"{', '.join(words[:_SHOWN])}{others}"


def _distance(port_tensor: Array, original_tensor: Array) -> float:
    """Return the largest difference between two tensors of the same shape.

    The original's tensor is first rounded to the number format of the port.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = original_tensor.astype(port_tensor.dtype)
        differences = np.abs(port_tensor.astype(np.float64) - rounded.astype(np.float64))
    same = (port_tensor == rounded) | (np.isnan(port_tensor) & np.isnan(rounded))
    return 0.0 if same.all() else float(differences[~same].max())
