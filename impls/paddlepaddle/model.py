"""The model behind the common protocol: NumPy arrays in, NumPy arrays out (``shared/protocol.py``)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import paddle

from triglot.shared import inputs
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.checkpoint.training_state import check_beginning
from triglot.shared.dtypes import HALVES
from triglot.shared.errors import FrameworkError, TrainingError
from triglot.shared.inputs import Batch
from triglot.shared.model.probe import Probe
from triglot.shared.training.dropout_masks import check_dropout_masks
from triglot.shared.training.plan import Moments, Outcome, Plan

from . import execution, masks, training, weights
from .execution import in_mode
from .generation import Generator
from .transformer import Transformer

DTYPES = {
    "float32": paddle.float32,
    "float64": paddle.float64,
    "bfloat16": paddle.bfloat16,
    "float16": paddle.float16,
}


class Model:
    """A checkpoint in PaddlePaddle. Implements ``shared.protocol.Model``."""

    def __init__(
        self, checkpoint: Checkpoint, *, device: str = "cpu", dtype: str | None = None, mode: str = "eager"
    ) -> None:
        dtype = dtype or "float32"
        if dtype not in DTYPES:
            raise FrameworkError(f"PaddlePaddle: dtype {dtype!r} is not supported; choose one of {', '.join(DTYPES)}")
        if device == "cuda" and not paddle.device.cuda.device_count():
            raise FrameworkError("PaddlePaddle: no cuda device was found; choose device 'cpu'")
        self.config = checkpoint.config
        self.trainer: training.Trainer | None = None
        self.device = paddle.set_device("gpu" if device == "cuda" else "cpu")
        self.on_gpu = device == "cuda"
        self.dtype_name = dtype
        self.dtype = DTYPES[dtype]
        self.mode = mode
        # For a CPU, the inference engine alone has kernels of 16 bits, and those for bfloat16.
        self.has_kernels = self.on_gpu or dtype not in HALVES
        if (dtype, mode) != ("bfloat16", "compiled"):
            self._check_kernels()
        self.transformer = Transformer(checkpoint.config)
        weights.load(self.transformer, checkpoint, self.dtype)
        self.transformer.eval()
        self._encode = in_mode(mode, execution.encode, self.transformer)
        self._run = in_mode(mode, execution.run, self.transformer)
        self._trace = in_mode(mode, execution.trace, self.transformer)
        # Whoever derives it may change the weights, so they cannot be part of it.
        self._loss = in_mode("jit" if mode == "jit" else "eager", training.loss, self.transformer)
        self.generator = Generator(self.transformer)
        if mode != "eager":
            self.generator.compile()

    def encode(self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None) -> np.ndarray:
        """See ``shared.protocol.Model.encode``."""
        batch = inputs.encoder_batch(self.config, token_ids, valid, segment_ids, task_ids)
        with paddle.no_grad():
            return self.to_numpy(self._encode(self._tensors(batch.arrays())))

    def heads(
        self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None
    ) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.heads``."""
        batch = inputs.heads_batch(self.config, token_ids, valid, segment_ids, task_ids)
        with paddle.no_grad():
            _, heads = self._run(self._tensors(batch.arrays()))
            return {name: self.to_numpy(value) for name, value in heads.items()}

    def forward(
        self, source_ids: Any, target_ids: Any, source_valid: Any = None, target_valid: Any = None
    ) -> np.ndarray:
        """See ``shared.protocol.Model.forward``."""
        batch = inputs.pair_batch(self.config, source_ids, target_ids, source_valid, target_valid)
        with paddle.no_grad():
            _, heads = self._run(self._tensors(batch.arrays()))
            (scores,) = heads.values()
            return self.to_numpy(scores)

    def generate(self, source_ids: Any, max_length: int | None = None, cached: bool = True) -> np.ndarray:
        """See ``shared.protocol.Model.generate``."""
        batch, length = inputs.generation_batch(self.config, source_ids, max_length)
        self._check_kernels()
        with paddle.no_grad():
            return self.to_numpy(
                self.generator.generate(self._tensor(batch.source), self._tensor(batch.valid), length, cached)
            ).astype(np.int32)

    def attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        allowed: Any = None,
        key_valid: Any = None,
        bias: Any = None,
        batch_first: bool = True,
    ) -> tuple[np.ndarray, np.ndarray]:
        """See ``shared.protocol.Model.attend``."""
        batch = inputs.attention_batch(self.config, query, key, value, allowed, key_valid, bias, batch_first)
        with paddle.no_grad():
            output, averaged = self._run(self._tensors(batch.arrays()))
            output = self.to_numpy(output)
            return output if batch_first else output.swapaxes(0, 1), self.to_numpy(averaged)

    def loss_and_gradients(
        self, batch: Batch, dropout_masks: Mapping[str, np.ndarray] | None = None
    ) -> tuple[float, dict[str, np.ndarray]]:
        """See ``shared.protocol.Model.loss_and_gradients``."""
        batch = inputs.to_train(self.config, batch)
        self._check_kernels()
        value, found = training.gradients(self.transformer, self._loss, *self._training_inputs(batch, dropout_masks))
        return float(value), weights.to_canonical(self.config, found)

    def begin_training(self, plan: Plan, moments: Moments | None = None) -> None:
        """See ``shared.protocol.Model.begin_training``."""
        check_beginning(self.config, self.dtype_name, self.mode, moments)
        self.trainer = training.Trainer(self.transformer, self._loss, plan, moments)

    def training_step(self, batch: Batch, dropout_masks: Mapping[str, np.ndarray] | None = None) -> Outcome:
        """See ``shared.protocol.Model.training_step``."""
        batch = inputs.to_train(self.config, batch)
        return self._begun().step(*self._training_inputs(batch, dropout_masks))

    def moments(self) -> Moments:
        """See ``shared.protocol.Model.moments``."""
        return self._begun().moments()

    def masks(self, valid: np.ndarray) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.masks``."""
        valid = inputs.check_valid(valid)
        padding, causal = masks.padding(self._tensor(valid)), masks.causal(valid.shape[1])
        combined = masks.combine(padding, causal)
        return {
            "padding": self.to_numpy(padding),
            "causal": self.to_numpy(causal),
            "combined": self.to_numpy(combined),
        }

    def trace(self, batch: Batch, replacements: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.trace``."""
        self._check_kernels()
        with paddle.no_grad():
            record = self._trace(self._tensors(batch.arrays()), self._tensors(replacements or {}))
            return {name: self.to_numpy(value) for name, value in record.items()}

    def run(self, batch: Batch, probe: Probe) -> tuple[Any, Any]:
        """As written, in any mode, with its values shown to ``probe``; see ``execution.run``."""
        self._check_kernels()
        return execution.run(self.transformer, self._tensors(batch.arrays()), probe)

    def prepare(self, workload: str, batch: Batch) -> Callable[[], Any]:
        """See ``shared.protocol.Model.prepare``."""
        if workload != "forward":
            self._check_kernels()
        given = self._tensors(batch.arrays())
        compute = partial(self._run, given)
        if workload == "generation":
            source, length = (given["source"], given["valid"]), self.config.target_max_length
            compute = partial(self.generator.generate, *source, length, cached=True)
        if workload == "forward+backward":
            compute = partial(training.gradients, self.transformer, self._loss, given, {})
        if workload == "training":
            compute = partial(self._begun().step, given, {})

        def call() -> Any:
            with paddle.set_grad_enabled(workload not in ("forward", "generation")):
                return compute()

        return call

    def wait(self, result: Any) -> None:
        """See ``shared.protocol.Model.wait``."""
        if self.on_gpu:
            paddle.device.synchronize()

    def to_numpy(self, tensor: paddle.Tensor) -> np.ndarray:
        """See ``shared.protocol.Model.to_numpy``."""
        return weights.paddle2np(tensor)

    def to_canonical(self, tensors: Mapping[str, paddle.Tensor]) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.to_canonical``."""
        return weights.to_canonical(self.config, tensors)

    def weights(self) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.weights``."""
        return weights.export(self.transformer)

    def _check_kernels(self) -> None:
        if not self.has_kernels:
            but = " but for the outputs of a model in mode 'compiled'" if self.dtype_name == "bfloat16" else ""
            raise FrameworkError(
                f"PaddlePaddle: it has no {self.dtype_name} on a CPU{but}; choose dtype 'float32', or device 'cuda'"
            )

    def _begun(self) -> training.Trainer:
        if self.trainer is None:
            raise TrainingError("no training has begun; call begin_training first")
        return self.trainer

    def _training_inputs(
        self, batch: Batch, dropout_masks: Mapping[str, np.ndarray] | None
    ) -> tuple[dict[str, paddle.Tensor], dict[str, paddle.Tensor]]:
        masks = check_dropout_masks(self.config, batch, dropout_masks or {})
        return self._tensors(batch.arrays()), self._tensors(masks)

    def _tensors(self, arrays: Mapping[str, np.ndarray]) -> dict[str, paddle.Tensor]:
        return {name: self._tensor(array) for name, array in inputs.fit_dtype(arrays, self.dtype_name).items()}

    def _tensor(self, array: np.ndarray) -> paddle.Tensor:
        tensor = weights.np2paddle(array).to(self.device)
        return tensor.astype(self.dtype) if tensor.is_floating_point() else tensor
