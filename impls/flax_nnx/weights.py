"""Conversion between canonical weights and Flax NNX's parameters.

The attribute paths are the canonical names, except for the last part: ``nnx.Linear`` calls its weight ``kernel`` and
``nnx.Embed`` calls it ``embedding``. ``kernel`` is (in, out), as the canonical layout is.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import Array

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import Parameter

from .transformer import Transformer

NATIVE = {"linear_weight": "kernel", "embedding": "embedding", "bias": "bias", "scale": "scale"}


def load(transformer: Transformer, checkpoint: Checkpoint, device: Any, dtype: Any) -> None:
    """Load the tensors of ``checkpoint`` into the parameters, strictly: all of them and no others."""
    native = to_native(checkpoint.config, checkpoint.tensors, device, dtype)
    nnx.update(transformer, as_state(nnx.state(transformer, nnx.Param), checkpoint.config, native))
    # An embedding casts its rows to the dtype that it was built with.
    transformer.set_attributes(nnx.Embed, dtype=dtype, raise_if_not_found=False)


def export(transformer: Transformer) -> dict[str, np.ndarray]:
    """Return the parameters by canonical name, in canonical layout."""
    return to_canonical(transformer.config, by_name(transformer.config, nnx.state(transformer, nnx.Param)))


def to_native(config: ModelConfig, arrays: Mapping[str, np.ndarray], device: Any, dtype: Any) -> dict[str, Array]:
    """Convert one array for each parameter, by canonical name, to tensors in the native layout."""
    tensors: dict[str, Array] = {}
    for name in schema.parameters(config):
        tensors[name] = np2jax(arrays[name], device, dtype)
    return tensors


def to_canonical(config: ModelConfig, tensors: Mapping[str, Array]) -> dict[str, np.ndarray]:
    """Convert one tensor for each parameter, by name, to arrays in the canonical layout."""
    arrays: dict[str, np.ndarray] = {}
    for name in schema.parameters(config):
        arrays[name] = jax2np(tensors[name])
    return arrays


def by_name(config: ModelConfig, state: Any) -> dict[str, Array]:
    """Return the values in a state of parameters, by canonical name."""
    flat = dict(nnx.to_flat_state(state))
    return {name: flat[_native_path(entry)].get_value() for name, entry in schema.parameters(config).items()}


def as_state(like: Any, config: ModelConfig, tensors: Mapping[str, Array]) -> Any:
    """Return a state like ``like`` with these values: the inverse of ``by_name``."""
    state = dict(nnx.to_flat_state(like))
    paths = {_native_path(parameter): name for name, parameter in schema.parameters(config).items()}
    # nnx.update would silently accept missing, extra and misshapen entries.
    assert state.keys() == paths.keys(), state.keys() ^ paths.keys()
    for path, name in paths.items():
        assert tensors[name].shape == state[path].shape, name
        state[path] = state[path].replace(tensors[name])
    return nnx.from_flat_state(list(state.items()))


def _native_path(parameter: Parameter) -> tuple[str | int, ...]:
    *path, _ = parameter.name.split(".")
    return (*(int(part) if part.isdigit() else part for part in path), NATIVE[parameter.role])


def np2jax(array: np.ndarray, device: Any, dtype: Any) -> Array:
    """Return a JAX array with a copy: device_put may share aligned memory, which could change later."""
    return jax.device_put(np.array(array, dtype), device)


def jax2np(tensor: Array) -> np.ndarray:
    """Return a copy as an array: JAX's own view is read-only."""
    return np.array(tensor)
