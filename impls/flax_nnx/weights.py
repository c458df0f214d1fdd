"""Between canonical weights and Flax NNX's parameters.

The attribute paths are the canonical names, but for the last part: ``nnx.Linear`` calls its weight ``kernel`` and
``nnx.Embed`` calls it ``embedding``. ``kernel`` is (in, out), as the canonical layout is.
"""

from typing import Any

import jax
import numpy as np
from flax import nnx

from ...shared import schema
from ...shared.checkpoint import Checkpoint
from ...shared.schema import Parameter
from .transformer import Transformer

NATIVE = {"linear_weight": "kernel", "embedding": "embedding", "bias": "bias", "scale": "scale"}


def load(transformer: Transformer, checkpoint: Checkpoint, device: Any, dtype: type) -> None:
    """Put the tensors of ``checkpoint`` in place of the parameters, strictly: all of them and no others."""
    parameters = schema.parameters(checkpoint.config)
    state = dict(nnx.to_flat_state(nnx.state(transformer, nnx.Param)))
    paths = {_native_path(parameter): name for name, parameter in parameters.items()}
    # nnx.update would take a missing, an extra and a misshapen entry without a word.
    assert state.keys() == paths.keys(), state.keys() ^ paths.keys()
    for path, name in paths.items():
        array = np2jax(checkpoint.tensors[name], device, dtype)
        assert array.shape == state[path].shape, name
        state[path] = state[path].replace(array)
    nnx.update(transformer, nnx.from_flat_state(list(state.items())))
    # An embedding casts its rows to the dtype that it was built with.
    transformer.set_attributes(nnx.Embed, dtype=dtype, raise_if_not_found=False)


def export(transformer: Transformer) -> dict[str, np.ndarray]:
    """The parameters by canonical name, in canonical layout."""
    state = dict(nnx.to_flat_state(nnx.state(transformer, nnx.Param)))
    weights = {}
    for name, parameter in schema.parameters(transformer.config).items():
        weights[name] = jax2np(state[_native_path(parameter)].get_value())
    return weights


def _native_path(parameter: Parameter) -> tuple[str | int, ...]:
    *path, _ = parameter.name.split(".")
    return (*(int(part) if part.isdigit() else part for part in path), NATIVE[parameter.role])


def np2jax(array: np.ndarray, device: Any, dtype: Any) -> jax.Array:
    """An array of JAX with a copy: device_put may keep aligned memory, and who changed that would change the model."""
    return jax.device_put(np.array(array, dtype), device)


def jax2np(tensor: jax.Array) -> np.ndarray:
    """A copy as an array: JAX's own view is read-only."""
    return np.array(tensor)
