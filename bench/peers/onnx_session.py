"""ONNX Runtime as an arm: it runs what PyTorch exports of Triglot's own model."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor, nn

from triglot import impls
from triglot.bench.run.cases import Case
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import EncoderBatch


class _Exported(nn.Module):
    """The model with plain tensors as inputs and outputs."""

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, source: Tensor, valid: Tensor, segment_ids: Tensor | None = None) -> tuple[Tensor, ...]:
        output, heads = self.transformer(source, valid, segment_ids)
        return output, *heads.values()


class OnnxArm:
    """A session with the threads of the case, and its batches."""

    def __init__(self, checkpoint: Checkpoint, case: Case, batches: Sequence[EncoderBatch]) -> None:
        model: Any = impls.build("torch", checkpoint)
        self.names = ["output", *checkpoint.config.heads_on_top]
        self.inputs = [
            {name: arrays[name] for name in ("source", "valid", "segment_ids") if name in arrays}
            for arrays in (batch.arrays() for batch in batches)
        ]
        example = tuple(torch.from_numpy(array.copy()) for array in self.inputs[0].values())
        batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=checkpoint.config.source_max_length)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = case.cell.threads
        options.log_severity_level = 3
        with tempfile.TemporaryDirectory(prefix="triglot-") as folder, torch.inference_mode():
            file = Path(folder) / "model.onnx"
            torch.onnx.export(
                _Exported(model.backend.transformer).eval(),
                example,
                file,
                input_names=list(self.inputs[0]),
                output_names=self.names,
                dynamic_shapes=tuple({0: batch, 1: length} for _ in example) if len(batches) > 1 else None,
                dynamo=True,
                verbose=False,
            )
            self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def call(self) -> list[Any]:
        """Compute every batch."""
        expected = {node.name for node in self.session.get_inputs()}
        return [
            self.session.run(self.names, {name: array for name, array in arrays.items() if name in expected})
            for arrays in self.inputs
        ]

    def wait(self, results: list[Any]) -> None:
        """Do nothing: a call of the session waits itself."""

    def outputs(self, results: list[Any]) -> Mapping[str, Array]:
        """Return what the first call returned for the first batch."""
        return dict(zip(self.names, results[0], strict=True))
