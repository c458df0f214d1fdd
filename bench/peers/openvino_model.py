"""OpenVINO as an arm: it runs what PyTorch exports of Triglot's own model."""

from collections.abc import Mapping, Sequence
from typing import Any

import openvino

from triglot.bench.run.cases import Case
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import EncoderBatch

from .onnx_export import exported, inputs_of, output_names

_PRECISION = {"float32": "f32", "bfloat16": "bf16"}


class OpenVinoArm:
    """A compiled model with the threads of the case, and its batches."""

    def __init__(self, checkpoint: Checkpoint, case: Case, batches: Sequence[EncoderBatch]) -> None:
        self.names = output_names(checkpoint)
        self.use(batches)
        settings = {
            "INFERENCE_NUM_THREADS": case.cell.threads,
            "INFERENCE_PRECISION_HINT": _PRECISION[case.cell.dtype],
            "PERFORMANCE_HINT": "LATENCY",
        }
        with exported(checkpoint, self.inputs) as file:
            self.model: Any = openvino.Core().compile_model(str(file), "CPU", settings)
        self.expected = {name for node in self.model.inputs for name in node.names}

    def use(self, batches: Sequence[EncoderBatch]) -> None:
        """Compute these batches from now on."""
        self.inputs = inputs_of(batches)

    def call(self) -> list[Any]:
        """Compute every batch."""
        return [
            self.model({name: array for name, array in arrays.items() if name in self.expected})
            for arrays in self.inputs
        ]

    def wait(self, results: list[Any]) -> None:
        """Do nothing: a call of the model waits itself."""

    def outputs(self, results: list[Any]) -> Mapping[str, Array]:
        """Return what the first call returned for the first batch."""
        return {name: results[0][name] for name in self.names}
