"""Between canonical weights and PyTorch's parameters.

The attribute paths are the canonical names. Only the layout differs: ``nn.Linear`` stores (out, in).
"""

import numpy as np
import torch

from ...shared import schema
from ...shared.checkpoint import Checkpoint
from ...shared.dtypes import BFLOAT16
from .transformer import Transformer


def load(transformer: Transformer, checkpoint: Checkpoint, device: str, dtype: torch.dtype) -> None:
    """Put the tensors of ``checkpoint`` in place of the parameters, strictly: all of them and no others.

    On the CPU, and without a change of dtype, the parameters are views of the checkpoint's arrays.
    """
    parameters = schema.parameters(checkpoint.config)
    state = {}
    for name, parameter in parameters.items():
        tensor = np2torch(checkpoint.tensors[name])
        tensor = tensor.T if parameter.role == "linear_weight" else tensor
        state[name] = tensor.to(device=device, dtype=dtype)
        if dtype == torch.float64:
            # On a transposed view of few rows, the float64 product rounds ten times as coarsely.
            state[name] = state[name].contiguous()
    transformer.load_state_dict(state, strict=True, assign=True)


def export(transformer: Transformer) -> dict[str, np.ndarray]:
    """The parameters by canonical name, in canonical layout."""
    state = transformer.state_dict()
    weights = {}
    for name, parameter in schema.parameters(transformer.config).items():
        tensor = state[name].T if parameter.role == "linear_weight" else state[name]
        weights[name] = torch2np(tensor)
    return weights


def np2torch(array: np.ndarray) -> torch.Tensor:
    """A tensor on the memory of ``array``; on a copy of one that is read-only, which PyTorch could not protect."""
    array = array if array.flags.writeable else array.copy()
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def torch2np(tensor: torch.Tensor) -> np.ndarray:
    """A copy as an array."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(BFLOAT16).copy()
    return tensor.numpy().copy()
