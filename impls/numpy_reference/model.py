"""The model behind the common protocol: NumPy arrays in, NumPy arrays out (``shared/protocol.py``)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from triglot.shared import inputs
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import FrameworkError
from triglot.shared.inputs import Batch
from triglot.shared.model.probe import Probe
from triglot.shared.training.dropout_masks import check_dropout_masks
from triglot.shared.training.plan import Moments, Outcome, Plan

from . import execution, masks, training, weights
from .execution import in_mode
from .generation import Generator
from .transformer import Transformer

DTYPES = {"float32": np.dtype(np.float32), "float64": np.dtype(np.float64)}


class Model:
    """A checkpoint in plain NumPy: the truth in float64, the noise in float32. Implements ``shared.protocol.Model``."""

    def __init__(
        self, checkpoint: Checkpoint, *, device: str = "cpu", dtype: str | None = None, mode: str = "eager"
    ) -> None:
        dtype = dtype or "float64"
        if dtype not in DTYPES:
            raise FrameworkError(f"NumPy: dtype {dtype!r} is not supported; choose one of {', '.join(DTYPES)}")
        if device != "cpu":
            raise FrameworkError(f"NumPy: no {device} device was found; choose device 'cpu'")
        self.config = checkpoint.config
        self.dtype = DTYPES[dtype]
        self.transformer = Transformer(checkpoint.config)
        weights.load(self.transformer, checkpoint, self.dtype)
        self.mode = mode
        self._encode = in_mode(mode, execution.encode, self.transformer)
        self._run = in_mode(mode, execution.run, self.transformer)
        self._trace = in_mode(mode, execution.trace, self.transformer)
        self.generator = Generator(self.transformer)

    def encode(self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None) -> np.ndarray:
        """See ``shared.protocol.Model.encode``."""
        batch = inputs.encoder_batch(self.config, token_ids, valid, segment_ids, task_ids)
        return self._encode(self._tensors(batch.arrays()))

    def heads(
        self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None
    ) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.heads``."""
        batch = inputs.heads_batch(self.config, token_ids, valid, segment_ids, task_ids)
        _, heads = self._run(self._tensors(batch.arrays()))
        return heads

    def forward(
        self, source_ids: Any, target_ids: Any, source_valid: Any = None, target_valid: Any = None
    ) -> np.ndarray:
        """See ``shared.protocol.Model.forward``."""
        batch = inputs.pair_batch(self.config, source_ids, target_ids, source_valid, target_valid)
        _, heads = self._run(self._tensors(batch.arrays()))
        (scores,) = heads.values()
        return scores

    def generate(self, source_ids: Any, max_length: int | None = None, cached: bool = True) -> np.ndarray:
        """See ``shared.protocol.Model.generate``."""
        batch, length = inputs.generation_batch(self.config, source_ids, max_length)
        source, valid = self._tensor(batch.source), self._tensor(batch.valid)
        return self.generator.generate(source, valid, length, cached)

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
        output, averaged = self._run(self._tensors(batch.arrays()))
        return output if batch_first else output.swapaxes(0, 1), averaged

    def loss_and_gradients(
        self, batch: Batch, dropout_masks: Mapping[str, np.ndarray] | None = None
    ) -> tuple[float, dict[str, np.ndarray]]:
        """See ``shared.protocol.Model.loss_and_gradients``."""
        batch = inputs.to_train(self.config, batch)
        value, found = training.gradients(self.transformer, *self._training_inputs(batch, dropout_masks))
        return float(value), weights.to_canonical(self.config, found)

    def begin_training(self, plan: Plan, moments: Moments | None = None) -> None:
        """See ``shared.protocol.Model.begin_training``."""
        raise FrameworkError("NumPy: the reference has no gradients to train by; choose torch, paddle or jax")

    def training_step(self, batch: Batch, dropout_masks: Mapping[str, np.ndarray] | None = None) -> Outcome:
        """See ``shared.protocol.Model.training_step``."""
        raise FrameworkError("NumPy: the reference has no gradients to train by; choose torch, paddle or jax")

    def moments(self) -> Moments:
        """See ``shared.protocol.Model.moments``."""
        raise FrameworkError("NumPy: the reference has no gradients to train by; choose torch, paddle or jax")

    def masks(self, valid: np.ndarray) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.masks``."""
        valid = inputs.check_valid(valid)
        padding, causal = masks.padding(valid), masks.causal(valid.shape[1])
        combined = masks.combine(padding, causal)
        return {"padding": padding, "causal": causal, "combined": combined}

    def trace(self, batch: Batch, replacements: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.trace``."""
        record = self._trace(self._tensors(batch.arrays()), self._tensors(replacements or {}))
        return record

    def run(self, batch: Batch, probe: Probe) -> tuple[Any, Any]:
        """As written, in any mode, with its values shown to ``probe``; see ``execution.run``."""
        return execution.run(self.transformer, self._tensors(batch.arrays()), probe)

    def prepare(self, workload: str, batch: Batch) -> Callable[[], Any]:
        """See ``shared.protocol.Model.prepare``."""
        given = self._tensors(batch.arrays())
        compute = partial(self._run, given)
        if workload == "generation":
            source, length = (given["source"], given["valid"]), self.config.target_max_length
            compute = partial(self.generator.generate, *source, length, cached=True)
        if workload == "forward+backward":
            compute = partial(training.gradients, self.transformer, given, {})
        if workload == "training":
            raise FrameworkError("NumPy: the reference has no gradients to train by; choose torch, paddle or jax")

        def call() -> Any:
            return compute()

        return call

    def wait(self, result: Any) -> None:
        """See ``shared.protocol.Model.wait``."""

    def to_numpy(self, tensor: np.ndarray) -> np.ndarray:
        """See ``shared.protocol.Model.to_numpy``."""
        return tensor

    def to_canonical(self, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.to_canonical``."""
        return weights.to_canonical(self.config, tensors)

    def weights(self) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.weights``."""
        return weights.export(self.transformer)

    def _training_inputs(
        self, batch: Batch, dropout_masks: Mapping[str, np.ndarray] | None
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        masks = check_dropout_masks(self.config, batch, dropout_masks or {})
        return self._tensors(batch.arrays()), self._tensors(masks)

    def _tensors(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: self._tensor(array) for name, array in arrays.items()}

    def _tensor(self, array: np.ndarray) -> np.ndarray:
        return array.astype(self.dtype) if np.issubdtype(array.dtype, np.floating) else array
