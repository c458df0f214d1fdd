"""The model behind the common protocol: NumPy arrays in, NumPy arrays out (``shared/protocol.py``)."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import numpy as jnp

from triglot.shared import inputs
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.checkpoint.training_state import check_beginning
from triglot.shared.errors import FrameworkError, TrainingError
from triglot.shared.inputs import Batch
from triglot.shared.model.probe import Probe
from triglot.shared.training.dropout_masks import check_dropout_masks
from triglot.shared.training.plan import Moments, Outcome, Plan

from . import execution, masks, training, weights
from .execution import in_mode
from .generation import Generator
from .transformer import Transformer

DTYPES = {"float32": jnp.float32, "float64": jnp.float64, "bfloat16": jnp.bfloat16, "float16": jnp.float16}


class Model:
    """A checkpoint in JAX, by Flax NNX. Implements ``shared.protocol.Model``."""

    def __init__(
        self, checkpoint: Checkpoint, *, device: str = "cpu", dtype: str | None = None, mode: str = "eager"
    ) -> None:
        dtype = dtype or "float32"
        if dtype not in DTYPES:
            raise FrameworkError(f"JAX: dtype {dtype!r} is not supported; choose one of {', '.join(DTYPES)}")
        try:
            self.device = jax.devices(device)[0]
        except RuntimeError as error:
            raise FrameworkError(f"JAX: no {device} device was found; choose device 'cpu'") from error
        self.config = checkpoint.config
        self.trainer: training.Trainer | None = None
        self.dtype_name = dtype
        self.dtype = DTYPES[dtype]
        with self._arithmetic():
            # Shapes only, allocate nothing: the checkpoint brings the memory.
            self.transformer = nnx.eval_shape(lambda: Transformer(checkpoint.config, rngs=nnx.Rngs(0)))
            weights.load(self.transformer, checkpoint, self.device, self.dtype)
        self.transformer.eval()
        # What drops out is given as masks: without streams of random numbers, parameters are all the state there is.
        self.transformer.set_attributes(nnx.Dropout, rngs=None, raise_if_not_found=False)
        self.mode = mode
        self._encode = in_mode(mode, execution.encode, self.transformer)
        self._run = in_mode(mode, execution.run, self.transformer)
        self._trace = in_mode(mode, execution.trace, self.transformer)
        self.generator = Generator(self.transformer)

    def encode(self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None) -> np.ndarray:
        """See ``shared.protocol.Model.encode``."""
        batch = inputs.encoder_batch(self.config, token_ids, valid, segment_ids, task_ids)
        with self._arithmetic():
            return self.to_numpy(self._encode(self._tensors(batch.arrays())))

    def heads(
        self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None
    ) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.heads``."""
        batch = inputs.heads_batch(self.config, token_ids, valid, segment_ids, task_ids)
        with self._arithmetic():
            _, heads = self._run(self._tensors(batch.arrays()))
            return {name: self.to_numpy(value) for name, value in heads.items()}

    def forward(
        self, source_ids: Any, target_ids: Any, source_valid: Any = None, target_valid: Any = None
    ) -> np.ndarray:
        """See ``shared.protocol.Model.forward``."""
        batch = inputs.pair_batch(self.config, source_ids, target_ids, source_valid, target_valid)
        with self._arithmetic():
            _, heads = self._run(self._tensors(batch.arrays()))
            (scores,) = heads.values()
            return self.to_numpy(scores)

    def generate(self, source_ids: Any, max_length: int | None = None, cached: bool = True) -> np.ndarray:
        """See ``shared.protocol.Model.generate``."""
        batch, length = inputs.generation_batch(self.config, source_ids, max_length)
        with self._arithmetic():
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
        with self._arithmetic():
            output, averaged = self._run(self._tensors(batch.arrays()))
            output = self.to_numpy(output)
            return output if batch_first else output.swapaxes(0, 1), self.to_numpy(averaged)

    def loss_and_gradients(
        self, batch: Batch, dropout_masks: Mapping[str, np.ndarray] | None = None
    ) -> tuple[float, dict[str, np.ndarray]]:
        """See ``shared.protocol.Model.loss_and_gradients``."""
        batch = inputs.to_train(self.config, batch)
        with self._arithmetic():
            value, found = training.gradients(self.transformer, *self._training_inputs(batch, dropout_masks))
            return float(value), weights.to_canonical(self.config, found)

    def begin_training(self, plan: Plan, moments: Moments | None = None) -> None:
        """See ``shared.protocol.Model.begin_training``."""
        check_beginning(self.config, self.dtype_name, self.mode, moments)
        with self._arithmetic():
            self.trainer = training.Trainer(self.transformer, plan, moments)

    def training_step(self, batch: Batch, dropout_masks: Mapping[str, np.ndarray] | None = None) -> Outcome:
        """See ``shared.protocol.Model.training_step``."""
        batch = inputs.to_train(self.config, batch)
        with self._arithmetic():
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
        with self._arithmetic():
            record = self._trace(self._tensors(batch.arrays()), self._tensors(replacements or {}))
            return {name: self.to_numpy(value) for name, value in record.items()}

    def run(self, batch: Batch, probe: Probe) -> tuple[Any, Any]:
        """As written, in any mode, with its values shown to ``probe``; see ``execution.run``."""
        return execution.run(self.transformer, self._tensors(batch.arrays()), probe)

    def prepare(self, workload: str, batch: Batch) -> Callable[[], Any]:
        """See ``shared.protocol.Model.prepare``."""
        with self._arithmetic():
            given = self._tensors(batch.arrays())
        compute = partial(self._run, given)
        if workload == "generation":
            source, length = (given["source"], given["valid"]), self.config.target_max_length
            compute = partial(self.generator.generate, *source, length, cached=True)
        if workload == "forward+backward":
            compute = partial(training.gradients, self.transformer, given, {})
        if workload == "training":
            compute = partial(self._begun().step, given, {})

        def call() -> Any:
            with self._arithmetic():
                return compute()

        return call

    def wait(self, result: Any) -> None:
        """See ``shared.protocol.Model.wait``."""
        jax.block_until_ready(result)

    def to_numpy(self, tensor: jax.Array) -> np.ndarray:
        """See ``shared.protocol.Model.to_numpy``."""
        return weights.jax2np(tensor)

    def to_canonical(self, tensors: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.to_canonical``."""
        return weights.to_canonical(self.config, tensors)

    def weights(self) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.weights``."""
        return weights.export(self.transformer)

    def _begun(self) -> training.Trainer:
        if self.trainer is None:
            raise TrainingError("no training has begun; call begin_training first")
        return self.trainer

    def _training_inputs(
        self, batch: Batch, dropout_masks: Mapping[str, np.ndarray] | None
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        masks = check_dropout_masks(self.config, batch, dropout_masks or {})
        return self._tensors(batch.arrays()), self._tensors(masks)

    def _tensors(self, arrays: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        return {name: self._tensor(array) for name, array in inputs.fit_dtype(arrays, self.dtype_name).items()}

    def _tensor(self, array: np.ndarray) -> jax.Array:
        dtype = self.dtype if np.issubdtype(array.dtype, np.floating) else array.dtype
        return weights.np2jax(array, self.device, dtype)

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        # Both are local to the context: without the first, float64 becomes float32 without a word; without the
        # second, an accelerator multiplies float32 matrices in fewer bits.
        with jax.enable_x64(self.dtype == jnp.float64), jax.default_matmul_precision("highest"):
            yield
