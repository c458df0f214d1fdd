"""Conversion between canonical weights and PaddlePaddle's parameters.

The attribute paths are the canonical names, and ``nn.Linear`` stores (in, out), as the canonical layout does.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import paddle
from paddle import Tensor

from triglot.shared.arrays import BFLOAT16, storable
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig

from .transformer import Transformer


@contextmanager
def without_values(dtype: paddle.dtype) -> Iterator[None]:
    """Enter a context in which new parameters get this dtype and no values. Drawing BERT-base takes a second."""
    before = paddle.get_default_dtype()
    paddle.set_default_dtype(dtype)
    try:
        with paddle.LazyGuard():
            yield
    finally:
        paddle.set_default_dtype(before)


def load(transformer: Transformer, checkpoint: Checkpoint, dtype: paddle.dtype) -> None:
    """Load the tensors of ``checkpoint`` into the parameters, strictly: all of them and no others.

    ``set_value`` copies a tensor, so each tensor is converted only when it is loaded. If all were converted first, the
    weights would be in memory twice.
    """
    transformer.to(dtype=dtype)
    state = transformer.state_dict()
    names = schema.parameters(checkpoint.config).keys()
    # set_state_dict would only warn about a difference.
    assert state.keys() == names, set(state) ^ set(names)
    for name, tensor in _converted(checkpoint.config, checkpoint.tensors, dtype):
        state[name].set_value(tensor)


def export(transformer: Transformer) -> dict[str, np.ndarray]:
    """Return the parameters by canonical name, in canonical layout."""
    return to_canonical(transformer.config, transformer.state_dict())


def to_native(config: ModelConfig, arrays: Mapping[str, np.ndarray], dtype: paddle.dtype) -> dict[str, Tensor]:
    """Convert one array for each parameter, by canonical name, to tensors in the native layout."""
    return dict(_converted(config, arrays, dtype))


def to_canonical(config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Convert one tensor for each parameter, by name, to arrays in the canonical layout."""
    arrays: dict[str, np.ndarray] = {}
    for name in schema.parameters(config):
        arrays[name] = paddle2np(tensors[name])
    return arrays


def _converted(
    config: ModelConfig, arrays: Mapping[str, np.ndarray], dtype: paddle.dtype
) -> Iterator[tuple[str, Tensor]]:
    """Convert the arrays one at a time, each when the caller asks for it."""
    for name in schema.parameters(config):
        yield name, np2paddle(arrays[name]).astype(dtype)


def np2paddle(array: np.ndarray) -> Tensor:
    """Return a tensor with a copy of ``array``. Paddle expects bfloat16 as uint16."""
    return paddle.to_tensor(storable(array))


def paddle2np(tensor: Tensor) -> np.ndarray:
    """Return a copy as an array."""
    array = tensor.numpy()
    return array.view(BFLOAT16) if tensor.dtype == paddle.bfloat16 else array
