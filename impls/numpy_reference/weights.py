"""Conversion between canonical weights and the attributes of the reference.

The attribute paths are the canonical names, and the layouts are the canonical ones.
"""

from collections.abc import Mapping

import numpy as np

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig

from .transformer import Transformer


def load(transformer: Transformer, checkpoint: Checkpoint, dtype: np.dtype) -> None:
    """Load the tensors of ``checkpoint`` into the parameters, strictly: all of them and no others."""
    for name, array in to_native(checkpoint.config, checkpoint.tensors, dtype).items():
        module, attribute = place(transformer, name)
        assert getattr(module, attribute).shape == array.shape, name
        setattr(module, attribute, array)


def export(transformer: Transformer) -> dict[str, np.ndarray]:
    """Return the parameters by canonical name, in canonical layout."""
    names = schema.parameters(transformer.config)
    return to_canonical(transformer.config, {name: getattr(*place(transformer, name)) for name in names})


def to_native(config: ModelConfig, arrays: Mapping[str, np.ndarray], dtype: np.dtype) -> dict[str, np.ndarray]:
    """Convert one array for each parameter, by canonical name, to tensors in the native layout."""
    tensors: dict[str, np.ndarray] = {}
    for name in schema.parameters(config):
        tensors[name] = np.asarray(arrays[name], dtype)
    return tensors


def to_canonical(config: ModelConfig, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert one tensor for each parameter, by name, to arrays in the canonical layout."""
    arrays: dict[str, np.ndarray] = {}
    for name in schema.parameters(config):
        arrays[name] = tensors[name].copy()
    return arrays


def place(transformer: Transformer, name: str) -> tuple[object, str]:
    """Return the module that has the parameter ``name``, and the name of its attribute."""
    *path, attribute = name.split(".")
    module: object = transformer
    for part in path:
        module = module[int(part)] if isinstance(module, list) else getattr(module, part)
    return module, attribute
