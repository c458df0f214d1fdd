"""The model behind the common protocol: NumPy arrays in, NumPy arrays out (``shared/protocol.py``)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import numpy as jnp

from ...shared import inputs
from ...shared.checkpoint import Checkpoint
from ...shared.errors import FrameworkError
from ...shared.inputs import Batch
from ...shared.probe import Probe
from . import masks, weights
from .transformer import Transformer

DTYPES = {"float32": jnp.float32, "float64": jnp.float64, "bfloat16": jnp.bfloat16}

# In the order in which the Transformer takes them.
_Inputs = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


class Model:
    """A checkpoint in JAX, by Flax NNX. Implements ``shared.protocol.Model``."""

    def __init__(self, checkpoint: Checkpoint, *, device: str = "cpu", dtype: str | None = None) -> None:
        dtype = dtype or "float32"
        if dtype not in DTYPES:
            raise FrameworkError(f"JAX: dtype {dtype!r} is not supported; choose one of {', '.join(DTYPES)}")
        try:
            self.device = jax.devices(device)[0]
        except RuntimeError as error:
            raise FrameworkError(f"JAX: no {device} device was found; choose device 'cpu'") from error
        self.config = checkpoint.config
        self.dtype = DTYPES[dtype]
        with self._arithmetic():
            # Shapes only, allocate nothing: the checkpoint brings the memory.
            self.transformer = nnx.eval_shape(lambda: Transformer(checkpoint.config, rngs=nnx.Rngs(0)))
            weights.load(self.transformer, checkpoint, self.device, self.dtype)
        self.transformer.eval()

    def encode(self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None) -> np.ndarray:
        """See ``shared.protocol.Model.encode``."""
        batch = inputs.batch(self.config, token_ids, valid, segment_ids, task_ids)
        with self._arithmetic():
            source, valid, segments, tasks, _, _ = self._to_device(batch)
            return self._to_numpy(self.transformer.encode(source, valid, segments, tasks))

    def heads(
        self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None
    ) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.heads``."""
        batch = inputs.batch_for_heads(self.config, token_ids, valid, segment_ids, task_ids)
        with self._arithmetic():
            _, heads = self.transformer(*self._to_device(batch))
            return {name: self._to_numpy(value) for name, value in heads.items()}

    def forward(
        self, source_ids: Any, target_ids: Any, source_valid: Any = None, target_valid: Any = None
    ) -> np.ndarray:
        """See ``shared.protocol.Model.forward``."""
        batch = inputs.pair(self.config, source_ids, target_ids, source_valid, target_valid)
        with self._arithmetic():
            _, heads = self.transformer(*self._to_device(batch))
            (scores,) = heads.values()
            return self._to_numpy(scores)

    def masks(self, valid: np.ndarray) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.masks``."""
        padding, causal = masks.padding(self._tensor(valid)), masks.causal(valid.shape[1])
        combined = masks.combine(padding, causal)
        return {
            "padding": self._to_numpy(padding),
            "causal": self._to_numpy(causal),
            "combined": self._to_numpy(combined),
        }

    def trace(self, batch: Batch, replacements: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.trace``."""
        with self._arithmetic():
            probe = Probe({name: self._tensor(value) for name, value in (replacements or {}).items()})
            self.transformer(*self._to_device(batch), probe)
            return {name: self._to_numpy(value) for name, value in probe.record.items()}

    def weights(self) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.weights``."""
        return weights.export(self.transformer)

    def _to_device(self, batch: Batch) -> _Inputs:
        source, valid = self._tensor(batch.source), self._tensor(batch.valid)
        target, target_valid = self._tensor(batch.target), self._tensor(batch.target_valid)
        return source, valid, self._tensor(batch.segment_ids), self._tensor(batch.task_ids), target, target_valid

    def _tensor(self, array: np.ndarray) -> jax.Array:
        dtype = self.dtype if np.issubdtype(array.dtype, np.floating) else array.dtype
        return weights.np2jax(array, self.device, dtype)

    def _to_numpy(self, tensor: jax.Array) -> np.ndarray:
        return weights.jax2np(tensor)

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        # Both are local to the context: without the first, float64 becomes float32 without a word; without the
        # second, an accelerator multiplies float32 matrices in fewer bits.
        with jax.enable_x64(self.dtype == jnp.float64), jax.default_matmul_precision("highest"):
            yield
