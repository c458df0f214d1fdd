"""Between canonical weights and PaddlePaddle's parameters.

The attribute paths are the canonical names, and ``nn.Linear`` stores (in, out), as the canonical layout does.
"""

import numpy as np
import paddle

from ...shared import schema
from ...shared.checkpoint import Checkpoint
from ...shared.dtypes import BFLOAT16, storable
from .transformer import Transformer


def load(transformer: Transformer, checkpoint: Checkpoint, dtype: paddle.dtype) -> None:
    """Put the tensors of ``checkpoint`` in place of the parameters, strictly: all of them and no others."""
    parameters = schema.parameters(checkpoint.config)
    transformer.to(dtype=dtype)
    state = transformer.state_dict()
    # set_state_dict would only warn about a difference.
    assert state.keys() == parameters.keys(), set(state) ^ set(parameters)
    for name in parameters:
        state[name].set_value(np2paddle(checkpoint.tensors[name]).astype(dtype))


def export(transformer: Transformer) -> dict[str, np.ndarray]:
    """The parameters by canonical name, in canonical layout."""
    state = transformer.state_dict()
    weights = {}
    for name in schema.parameters(transformer.config):
        weights[name] = paddle2np(state[name])
    return weights


def np2paddle(array: np.ndarray) -> paddle.Tensor:
    """A tensor with a copy of ``array``. Paddle takes uint16 for bfloat16."""
    return paddle.to_tensor(storable(array))


def paddle2np(tensor: paddle.Tensor) -> np.ndarray:
    """A copy as an array."""
    array = tensor.numpy()
    return array.view(BFLOAT16) if tensor.dtype == paddle.bfloat16 else array
