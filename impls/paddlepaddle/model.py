"""The model behind the common protocol: NumPy arrays in, NumPy arrays out (``shared/protocol.py``)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle

from ...shared import inputs
from ...shared.checkpoint import Checkpoint
from ...shared.errors import FrameworkError
from ...shared.inputs import Batch
from ...shared.probe import Probe
from . import masks, weights
from .transformer import Transformer

DTYPES = {"float32": paddle.float32, "float64": paddle.float64, "bfloat16": paddle.bfloat16}

# In the order in which the Transformer takes them.
_Inputs = tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor, paddle.Tensor, paddle.Tensor, paddle.Tensor]


class Model:
    """A checkpoint in PaddlePaddle. Implements ``shared.protocol.Model``."""

    def __init__(self, checkpoint: Checkpoint, *, device: str = "cpu", dtype: str | None = None) -> None:
        dtype = dtype or "float32"
        if dtype not in DTYPES:
            raise FrameworkError(f"PaddlePaddle: dtype {dtype!r} is not supported; choose one of {', '.join(DTYPES)}")
        if device == "cuda" and not paddle.device.cuda.device_count():
            raise FrameworkError("PaddlePaddle: no cuda device was found; choose device 'cpu'")
        if device == "cpu" and dtype == "bfloat16":
            raise FrameworkError(
                "PaddlePaddle: its CPU kernels for matmul, softmax and layer_norm do not know bfloat16; choose dtype "
                "'float32', or device 'cuda'"
            )
        self.config = checkpoint.config
        self.device = paddle.set_device("gpu" if device == "cuda" else "cpu")
        self.dtype = DTYPES[dtype]
        self.transformer = Transformer(checkpoint.config)
        weights.load(self.transformer, checkpoint, self.dtype)
        self.transformer.eval()

    def encode(self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None) -> np.ndarray:
        """See ``shared.protocol.Model.encode``."""
        batch = inputs.batch(self.config, token_ids, valid, segment_ids, task_ids)
        with paddle.no_grad():
            source, valid, segments, tasks, _, _ = self._to_device(batch)
            return self._to_numpy(self.transformer.encode(source, valid, segments, tasks))

    def heads(
        self, token_ids: Any, valid: Any = None, segment_ids: Any = None, task_ids: Any = None
    ) -> dict[str, np.ndarray]:
        """See ``shared.protocol.Model.heads``."""
        batch = inputs.batch_for_heads(self.config, token_ids, valid, segment_ids, task_ids)
        with paddle.no_grad():
            _, heads = self.transformer(*self._to_device(batch))
            return {name: self._to_numpy(value) for name, value in heads.items()}

    def forward(
        self, source_ids: Any, target_ids: Any, source_valid: Any = None, target_valid: Any = None
    ) -> np.ndarray:
        """See ``shared.protocol.Model.forward``."""
        batch = inputs.pair(self.config, source_ids, target_ids, source_valid, target_valid)
        with paddle.no_grad():
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
        with paddle.no_grad():
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

    def _tensor(self, array: np.ndarray) -> paddle.Tensor:
        tensor = weights.np2paddle(array).to(self.device)
        return tensor.astype(self.dtype) if tensor.is_floating_point() else tensor

    def _to_numpy(self, tensor: paddle.Tensor) -> np.ndarray:
        return weights.paddle2np(tensor)
