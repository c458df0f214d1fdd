"""ONNX Runtime as an arm: it runs what PyTorch exports of Triglot's own model."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime

from triglot.bench.run.cases import Case
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import EncoderBatch

from .onnx_export import exported, inputs_of, output_names


class OnnxArm:
    """A session with the threads of the case, and its batches."""

    def __init__(self, checkpoint: Checkpoint, case: Case, batches: Sequence[EncoderBatch]) -> None:
        self.names = output_names(checkpoint)
        self.use(batches)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = case.cell.threads
        options.log_severity_level = 3
        with exported(checkpoint, self.inputs) as file:
            self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def use(self, batches: Sequence[EncoderBatch]) -> None:
        """Compute these batches from now on."""
        self.inputs = inputs_of(batches)

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
