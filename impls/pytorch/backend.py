"""A framework behind the facade (``impls/model.py``): the weights of a model, its programs, and tensors in and out."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triglot.shared.checkpoint import Checkpoint
from triglot.shared.choices import WITH_GRADIENTS
from triglot.shared.errors import FrameworkError
from triglot.shared.inputs.packing import can_pack
from triglot.shared.memory import ask_for_huge_pages
from triglot.shared.training.plan import Moments, Plan

from . import execution, masks, training, weights
from .execution import in_mode
from .fused import can_fuse, with_fused_attention
from .generation import Generator
from .packed import Packed, has_kernels
from .packed_loss import PackedLoss
from .transformer import Transformer

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Backend:
    """A transformer with the weights of a checkpoint, and its programs in one mode (``execution.py``).

    Raises:
        FrameworkError: the framework does not support the device, the dtype or the mode.
    """

    def __init__(self, checkpoint: Checkpoint, device: str, dtype: str, mode: str) -> None:
        if dtype not in DTYPES:
            raise FrameworkError(f"PyTorch: dtype {dtype!r} is not supported; choose one of {', '.join(DTYPES)}")
        if device == "cuda" and not torch.cuda.is_available():
            raise FrameworkError("PyTorch: no cuda device was found; choose device 'cpu'")
        self.config, self.mode = checkpoint.config, mode
        self.device, self.dtype, self.dtype_name = device, DTYPES[dtype], dtype
        # Allocate and compute nothing: the checkpoint provides the memory.
        with torch.device("meta"), weights.WithoutNoise():
            self.transformer = Transformer(checkpoint.config)
        weights.load(self.transformer, checkpoint, device, self.dtype)
        if device == "cpu" and mode != "eager":
            ask_for_huge_pages()
        self.transformer.eval()
        self.packs = mode == "compiled" and can_pack(self.config, device, dtype) and has_kernels(dtype)
        if self.packs:
            deployed = Packed(self.transformer)
            self.encode, self.run = deployed.encode, deployed.run
        else:
            fuses = mode == "compiled" and can_fuse(self.config, device, dtype)
            transformer = with_fused_attention(self.transformer) if fuses else self.transformer
            self.encode = in_mode(mode, execution.encode, transformer)
            self.run = in_mode(mode, execution.run, transformer)
        self.run_eagerly = partial(execution.run, self.transformer)
        # Weights may change between gradients, so they cannot be compiled in.
        self.loss = in_mode("jit" if mode == "jit" else "eager", training.loss, self.transformer)
        if (mode, dtype) == ("jit", "float32") and can_pack(self.config, device, dtype):
            self.loss = PackedLoss(self.transformer, self.loss)
        self.generator = Generator(self.transformer)
        if mode != "eager" and self.config.kind == "encoder_decoder":
            self.generator.compile()

    @cached_property
    def trace(self) -> Callable[..., Any]:
        """The program that returns every named value. Made when it is needed: only parity calls it."""
        # The packed encoder runs without torch.compile, so its steps are shown without it too.
        return in_mode("eager" if self.packs else self.mode, execution.trace, self.transformer)

    @contextmanager
    def computing(self, workload: str) -> Iterator[None]:
        """Enter the state in which the framework computes a workload.

        Raises:
            FrameworkError: the framework cannot compute it.
        """
        with torch.inference_mode(workload not in WITH_GRADIENTS):
            yield

    def to_tensor(self, array: np.ndarray) -> Tensor:
        """Copy an array to the device, floats in the dtype of the model."""
        tensor = weights.np2torch(array.copy())
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)

    def to_numpy(self, tensor: Tensor) -> np.ndarray:
        """Return a tensor as an array."""
        return weights.torch2np(tensor)

    def masks(self, valid: Tensor) -> dict[str, Tensor]:
        """Build each mask from ``valid``, bool (B, S), by name."""
        padding, causal = masks.padding(valid), masks.causal(valid.shape[1], valid.device)
        return {"padding": padding, "causal": causal, "combined": masks.combine(padding, causal)}

    def gradients(
        self, inputs: Mapping[str, Tensor], dropout_masks: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch, and its gradients by parameter name."""
        return training.gradients(self.transformer, self.loss, inputs, dropout_masks)

    def trainer(self, plan: Plan, moments: Moments | None) -> training.Trainer:
        """Return a trainer of the transformer, which resumes from ``moments`` if there are any."""
        return training.Trainer(self.transformer, self.loss, plan, moments)

    def wait(self, result: Any) -> None:
        """Wait until a result is computed."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def to_canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """Return one tensor for each parameter as arrays, by canonical name and in canonical layout."""
        return weights.to_canonical(self.config, tensors)

    def weights(self) -> dict[str, np.ndarray]:
        """Return the parameters by canonical name, in canonical layout."""
        return weights.export(self.transformer)
