"""The model behind the common protocol: NumPy arrays in, NumPy arrays out (``shared/protocol.py``)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...shared import inputs
from ...shared.checkpoint import Checkpoint
from ...shared.errors import FrameworkError
from ...shared.inputs import Batch
from ...shared.probe import Probe
from . import masks, weights
from .transformer import Transformer

DTYPES = {"float32": np.dtype(np.float32), "float64": np.dtype(np.float64)}

# In the order in which the Transformer takes them.
_Inputs = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Model:
    """A checkpoint in plain NumPy: the truth in float64, the noise in float32. Implements ``shared.protocol.Model``."""

    def __init__(self, checkpoint: Checkpoint, *, device: str = "cpu", dtype: str | None = None) -> None:
        dtype = dtype or "float64"
        if dtype not in DTYPES:
            raise FrameworkError(f"NumPy: dtype {dtype!r} is not supported; choose one of {', '.join(DTYPES)}")
        if device != "cpu":
            raise FrameworkError(f"NumPy: no {device} device was found; choose device 'cpu'")
        self.config = checkpoint.config
        self.dtype = DTYPES[dtype]
        self.transformer = Transformer(checkpoint.config)
        weights.load(self.transformer, checkpoint, self.dtype)

    def encode(self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None) -> np.ndarray:
        """See ``shared.protocol.Model.encode``."""
        batch = inputs.batch(self.config, token_ids, valid, segment_ids, task_ids)
        source, valid, segments, tasks, _, _ = self._to_device(batch)
        return self.transformer.encode(source, valid, segments, tasks)

    def heads(
        self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None
    ) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.heads``."""
        batch = inputs.batch_for_heads(self.config, token_ids, valid, segment_ids, task_ids)
        _, heads = self.transformer(*self._to_device(batch))
        return heads

    def forward(
        self, source_ids: Any, target_ids: Any, source_valid: Any = None, target_valid: Any = None
    ) -> np.ndarray:
        """See ``shared.protocol.Model.forward``."""
        batch = inputs.pair(self.config, source_ids, target_ids, source_valid, target_valid)
        _, heads = self.transformer(*self._to_device(batch))
        (scores,) = heads.values()
        return scores

    def masks(self, valid: np.ndarray) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.masks``."""
        padding, causal = masks.padding(valid), masks.causal(valid.shape[1])
        combined = masks.combine(padding, causal)
        return {"padding": padding, "causal": causal, "combined": combined}

    def trace(self, batch: Batch, replacements: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.trace``."""
        probe = Probe({name: self._tensor(value) for name, value in (replacements or {}).items()})
        self.transformer(*self._to_device(batch), probe)
        return probe.record

    def weights(self) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.weights``."""
        return weights.export(self.transformer)

    def _to_device(self, batch: Batch) -> _Inputs:
        source, valid = self._tensor(batch.source), self._tensor(batch.valid)
        target, target_valid = self._tensor(batch.target), self._tensor(batch.target_valid)
        return source, valid, self._tensor(batch.segment_ids), self._tensor(batch.task_ids), target, target_valid

    def _tensor(self, array: np.ndarray) -> np.ndarray:
        return array.astype(self.dtype) if np.issubdtype(array.dtype, np.floating) else array
