"""A framework behind the facade (``impls/model.py``): the weights of a model, its programs, and tensors in and out."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy import ndarray

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import FrameworkError

from . import execution, masks, training, weights
from .execution import in_mode
from .generation import Generator
from .transformer import Transformer

DTYPES = {"float32": np.dtype(np.float32), "float64": np.dtype(np.float64)}


class Backend:
    """A transformer with the weights of a checkpoint, and its programs in one mode (``execution.py``).

    Raises:
        FrameworkError: the framework does not support the device, the dtype or the mode.
    """

    def __init__(self, checkpoint: Checkpoint, device: str, dtype: str, mode: str) -> None:
        if dtype not in DTYPES:
            raise FrameworkError(f"NumPy: dtype {dtype!r} is not supported; choose one of {', '.join(DTYPES)}")
        if device != "cpu":
            raise FrameworkError(f"NumPy: no {device} device was found; choose device 'cpu'")
        self.config, self.mode = checkpoint.config, mode
        self.dtype, self.dtype_name = DTYPES[dtype], dtype
        self.transformer = Transformer(checkpoint.config)
        weights.load(self.transformer, checkpoint, self.dtype)
        self.encode = in_mode(mode, execution.encode, self.transformer)
        self.run = in_mode(mode, execution.run, self.transformer)
        self.run_eagerly = partial(execution.run, self.transformer)
        self.generator = Generator(self.transformer)

    @cached_property
    def trace(self) -> Callable[..., Any]:
        """The program that returns every named value. Made when it is needed: only parity calls it."""
        return in_mode(self.mode, execution.trace, self.transformer)

    @contextmanager
    def computing(self, workload: str) -> Iterator[None]:
        """Enter the state in which the framework computes a workload.

        Raises:
            FrameworkError: the framework cannot compute it.
        """
        if workload == "training":
            raise FrameworkError("NumPy: the reference has no gradients to train by; choose torch, paddle or jax")
        yield

    def to_tensor(self, array: ndarray) -> ndarray:
        """Copy an array to the device, floats in the dtype of the model."""
        return array.astype(self.dtype if np.issubdtype(array.dtype, np.floating) else array.dtype)

    def to_numpy(self, tensor: ndarray) -> ndarray:
        """Return a tensor as an array."""
        return tensor

    def masks(self, valid: ndarray) -> dict[str, ndarray]:
        """Build each mask from ``valid``, bool (B, S), by name."""
        padding, causal = masks.padding(valid), masks.causal(valid.shape[1])
        return {"padding": padding, "causal": causal, "combined": masks.combine(padding, causal)}

    def gradients(
        self, inputs: Mapping[str, ndarray], dropout_masks: Mapping[str, ndarray]
    ) -> tuple[ndarray, dict[str, ndarray]]:
        """Return the loss of a batch, and its gradients by parameter name."""
        return training.gradients(self.transformer, inputs, dropout_masks)

    def wait(self, result: Any) -> None:
        """Wait until a result is computed."""

    def to_canonical(self, tensors: Mapping[str, ndarray]) -> dict[str, ndarray]:
        """Return one tensor for each parameter as arrays, by canonical name and in canonical layout."""
        return weights.to_canonical(self.config, tensors)

    def weights(self) -> dict[str, ndarray]:
        """Return the parameters by canonical name, in canonical layout."""
        return weights.export(self.transformer)
