"""A framework behind the facade (``impls/model.py``): the weights of a model, its programs, and tensors in and out."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from triglot.shared.arrays import HALVES
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.choices import WITH_GRADIENTS
from triglot.shared.errors import FrameworkError
from triglot.shared.inputs.packing import can_pack
from triglot.shared.memory import ask_for_huge_pages
from triglot.shared.training.plan import Moments, Plan

from . import execution, masks, training, weights
from .execution import in_mode
from .generation import Generator
from .packed import Packed
from .packed_loss import PackedLoss
from .transformer import Transformer

DTYPES = {
    "float32": paddle.float32,
    "float64": paddle.float64,
    "bfloat16": paddle.bfloat16,
    "float16": paddle.float16,
}

_LOCK = threading.RLock()
_SERIAL = "FLAGS_new_executor_serial_run"


@contextmanager
def _turn(device: str, serial: bool = False) -> Iterator[None]:
    """Make this the only thread that uses Paddle, on this device.

    Paddle's current device belongs to the process, and so does its static mode, in which it traces programs and in
    which another thread cannot make a tensor.

    ``serial`` makes programs of ``to_static`` on a CPU run one operation after another. By default, independent
    operations run at the same time, but each of them uses all cores, so they wait for one another. The inference engine
    does not need this, and setting it takes a while.
    """
    with _LOCK:
        before = paddle.get_device()
        flags = paddle.get_flags(_SERIAL) if serial and device == "cpu" else {}
        paddle.set_device("gpu" if device == "cuda" else "cpu")
        paddle.set_flags(dict.fromkeys(flags, True))
        try:
            yield
        finally:
            paddle.set_flags(flags)
            paddle.set_device(before)


class Backend:
    """A transformer with the weights of a checkpoint, and its programs in one mode (``execution.py``).

    Raises:
        FrameworkError: the framework does not support the device, the dtype or the mode.
    """

    def __init__(self, checkpoint: Checkpoint, device: str, dtype: str, mode: str) -> None:
        if dtype not in DTYPES:
            raise FrameworkError(f"PaddlePaddle: dtype {dtype!r} is not supported; choose one of {', '.join(DTYPES)}")
        if device == "cuda" and not paddle.device.cuda.device_count():
            raise FrameworkError("PaddlePaddle: no cuda device was found; choose device 'cpu'")
        self.config, self.mode = checkpoint.config, mode
        self.device, self.dtype, self.dtype_name = device, DTYPES[dtype], dtype
        self.place = paddle.CUDAPlace(0) if device == "cuda" else paddle.CPUPlace()
        if (dtype, mode) != ("bfloat16", "compiled"):
            self._check_kernels()
        with _turn(device):
            # Compute nothing: the checkpoint provides the values.
            with weights.without_values(self.dtype):
                self.transformer = Transformer(checkpoint.config)
            weights.load(self.transformer, checkpoint, self.dtype)
            if device == "cpu" and mode != "eager":
                ask_for_huge_pages()
            self.transformer.eval()
            if mode == "compiled" and can_pack(self.config, device, dtype):
                deployed = Packed(self.transformer)
                self.encode, self.run = deployed.encode, deployed.run
            else:
                self.encode = in_mode(mode, execution.encode, self.transformer)
                self.run = in_mode(mode, execution.run, self.transformer)
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
        return in_mode(self.mode, execution.trace, self.transformer)

    @contextmanager
    def computing(self, workload: str) -> Iterator[None]:
        """Enter the state in which the framework computes a workload.

        Raises:
            FrameworkError: the framework cannot compute it.
        """
        if workload != "forward":
            self._check_kernels()
        # In mode "compiled", generation and traces also run programs of ``to_static``.
        serial = self.mode == "jit" or (self.mode == "compiled" and workload in ("generation", "trace"))
        with _turn(self.device, serial), paddle.set_grad_enabled(workload in WITH_GRADIENTS):
            yield

    def to_tensor(self, array: np.ndarray) -> Tensor:
        """Copy an array to the device, floats in the dtype of the model."""
        tensor = weights.np2paddle(array).to(self.place)
        return tensor.astype(self.dtype) if tensor.is_floating_point() else tensor

    def to_numpy(self, tensor: Tensor) -> np.ndarray:
        """Return a tensor as an array."""
        return weights.paddle2np(tensor)

    def masks(self, valid: Tensor) -> dict[str, Tensor]:
        """Build each mask from ``valid``, bool (B, S), by name."""
        padding, causal = masks.padding(valid), masks.causal(valid.shape[1])
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
            paddle.device.synchronize()

    def to_canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """Return one tensor for each parameter as arrays, by canonical name and in canonical layout."""
        return weights.to_canonical(self.config, tensors)

    def weights(self) -> dict[str, np.ndarray]:
        """Return the parameters by canonical name, in canonical layout."""
        return weights.export(self.transformer)

    def _check_kernels(self) -> None:
        # On a CPU only the inference engine has 16-bit kernels, those for bfloat16.
        if self.device == "cpu" and self.dtype_name in HALVES:
            exception = " except for the outputs of a model in mode 'compiled'" if self.dtype_name == "bfloat16" else ""
            raise FrameworkError(
                f"PaddlePaddle: no {self.dtype_name} on a CPU{exception}; choose dtype 'float32', or device 'cuda'"
            )
