"""The model behind the common protocol: NumPy arrays in, NumPy arrays out (``shared/protocol.py``)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ...shared import inputs
from ...shared.checkpoint import Checkpoint
from ...shared.errors import FrameworkError
from ...shared.inputs import Batch
from ...shared.probe import Probe
from . import masks, weights
from .transformer import Transformer

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}

# In the order in which the Transformer takes them.
_Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class Model:
    """A checkpoint in PyTorch. Implements ``shared.protocol.Model``."""

    def __init__(self, checkpoint: Checkpoint, *, device: str = "cpu", dtype: str | None = None) -> None:
        dtype = dtype or "float32"
        if dtype not in DTYPES:
            raise FrameworkError(f"PyTorch: dtype {dtype!r} is not supported; choose one of {', '.join(DTYPES)}")
        if device == "cuda" and not torch.cuda.is_available():
            raise FrameworkError("PyTorch: no cuda device was found; choose device 'cpu'")
        self.config = checkpoint.config
        self.device = device
        self.dtype = DTYPES[dtype]
        with torch.device("meta"):  # allocate nothing: the checkpoint brings the memory
            self.transformer = Transformer(checkpoint.config)
        weights.load(self.transformer, checkpoint, device, self.dtype)
        self.transformer.eval()

    def encode(self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None) -> np.ndarray:
        """See ``shared.protocol.Model.encode``."""
        batch = inputs.batch(self.config, token_ids, valid, segment_ids, task_ids)
        with torch.inference_mode():
            source, valid, segments, tasks, _, _ = self._to_device(batch)
            return self._to_numpy(self.transformer.encode(source, valid, segments, tasks))

    def heads(
        self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None
    ) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.heads``."""
        batch = inputs.batch_for_heads(self.config, token_ids, valid, segment_ids, task_ids)
        with torch.inference_mode():
            _, heads = self.transformer(*self._to_device(batch))
            return {name: self._to_numpy(value) for name, value in heads.items()}

    def forward(
        self, source_ids: Any, target_ids: Any, source_valid: Any = None, target_valid: Any = None
    ) -> np.ndarray:
        """See ``shared.protocol.Model.forward``."""
        batch = inputs.pair(self.config, source_ids, target_ids, source_valid, target_valid)
        with torch.inference_mode():
            _, heads = self.transformer(*self._to_device(batch))
            (scores,) = heads.values()
            return self._to_numpy(scores)

    def masks(self, valid: np.ndarray) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.masks``."""
        padding, causal = masks.padding(self._tensor(valid)), masks.causal(valid.shape[1], self.device)
        combined = masks.combine(padding, causal)
        return {
            "padding": self._to_numpy(padding),
            "causal": self._to_numpy(causal),
            "combined": self._to_numpy(combined),
        }

    def trace(self, batch: Batch, replacements: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.trace``."""
        with torch.inference_mode():
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

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = weights.np2torch(array.copy())
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)

    def _to_numpy(self, tensor: torch.Tensor) -> np.ndarray:
        return weights.torch2np(tensor)
