"""Conversion between canonical weights and PyTorch's parameters.

The attribute paths are the canonical names. Only the layout differs: ``nn.Linear`` stores (out, in).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from triglot.shared.arrays import BFLOAT16
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig

from .transformer import Transformer


class WithoutNoise(TorchFunctionMode):
    """A context in which nothing is drawn from a normal distribution, so ``nn.Embedding`` keeps its parameters.

    It is for parameters on the meta device. They have no values, and drawing some would import PyTorch's compiler,
    which takes 1.4 s.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        return options["tensor"] if func is nn.init.normal_ else func(*args, **options)


def load(transformer: Transformer, checkpoint: Checkpoint, device: str, dtype: torch.dtype) -> None:
    """Load the tensors of ``checkpoint`` into the parameters, strictly: all of them and no others.

    On the CPU and in the dtype of the checkpoint, the parameters are views of its arrays.
    """
    state = to_native(checkpoint.config, checkpoint.tensors, device, dtype)
    transformer.load_state_dict(state, strict=True, assign=True)


def export(transformer: Transformer) -> dict[str, np.ndarray]:
    """Return the parameters by canonical name, in canonical layout."""
    return to_canonical(transformer.config, transformer.state_dict())


def to_native(
    config: ModelConfig, arrays: Mapping[str, np.ndarray], device: str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Convert one array for each parameter, by canonical name, to tensors in the native layout."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in schema.parameters(config).items():
        tensor = np2torch(arrays[name])
        tensor = tensor.T if parameter.role == "linear_weight" else tensor
        tensors[name] = tensor.to(device=device, dtype=dtype)
        if dtype == torch.float64:
            # With a transposed view of few rows, PyTorch's float64 product rounds ten times as coarsely.
            tensors[name] = tensors[name].contiguous()
    return tensors


def to_canonical(config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Convert one tensor for each parameter, by name, to arrays in the canonical layout."""
    arrays: dict[str, np.ndarray] = {}
    for name, parameter in schema.parameters(config).items():
        tensor = tensors[name].T if parameter.role == "linear_weight" else tensors[name]
        arrays[name] = torch2np(tensor)
    return arrays


def np2torch(array: np.ndarray) -> Tensor:
    """Return a tensor on the memory of ``array``; on a copy if that is read-only, which PyTorch does not respect."""
    array = array if array.flags.writeable else array.copy()
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def torch2np(tensor: Tensor) -> np.ndarray:
    """Return a copy as an array."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(BFLOAT16).copy()
    return tensor.numpy().copy()
