"""ONNX Runtime as an arm: an exported BertModel of ``transformers``, optimised by ONNX Runtime's tool for BERT."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnxruntime.transformers import optimizer
from torch import Tensor, nn

from triglot.bench.run.cases import Case
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import EncoderBatch

from .onnx_export import inputs_of, output_names
from .transformers_bert import bert_model


class OnnxArm:
    """A session with the threads of the case, and its batches."""

    def __init__(self, checkpoint: Checkpoint, case: Case, batches: Sequence[EncoderBatch]) -> None:
        self.names = output_names(checkpoint)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = case.cell.threads
        options.log_severity_level = 3
        with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
            file = Path(folder) / "optimized.onnx"
            optimized(checkpoint, inputs_of(batches)[0], Path(folder)).save_model_to_file(str(file))
            self.session: Any = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.use(batches)

    def use(self, batches: Sequence[EncoderBatch]) -> None:
        """Compute these batches from now on."""
        self.inputs = [
            {name: array.astype(np.int64) for name, array in arrays.items()} for arrays in inputs_of(batches)
        ]

    def call(self) -> list[Any]:
        """Compute every batch."""
        return [self.session.run(self.names, arrays) for arrays in self.inputs]

    def wait(self, results: list[Any]) -> None:
        """Do nothing: a call of the session waits itself."""

    def outputs(self, results: list[Any]) -> Mapping[str, Array]:
        """Return what the first call returned for the first batch."""
        return dict(zip(self.names, results[0], strict=True))


class _Exported(nn.Module):
    """BertModel with plain tensors as inputs and outputs."""

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, source: Tensor, valid: Tensor, segment_ids: Tensor | None = None) -> tuple[Tensor, ...]:
        result = self.bert(input_ids=source, attention_mask=valid, token_type_ids=segment_ids)
        return result.last_hidden_state, *([] if result.pooler_output is None else [result.pooler_output])


def optimized(checkpoint: Checkpoint, example: Mapping[str, Array], folder: Path) -> Any:
    """Return the model with fused attention, GELU and norms. Its shapes are dynamic. ``example``: inputs by name.

    The tool recognises attention only as ``transformers`` writes it, and as PyTorch's older exporter writes it.
    """
    names, file = list(example), folder / "exported.onnx"
    with torch.inference_mode():
        torch.onnx.export(
            _Exported(bert_model(checkpoint, "eager")),
            tuple(torch.from_numpy(array.astype(np.int64)) for array in example.values()),
            file,
            input_names=names,
            output_names=output_names(checkpoint),
            dynamic_axes={name: {0: "batch", 1: "length"} for name in [*names, "output"]},
            dynamo=False,
        )
    config = checkpoint.config
    return optimizer.optimize_model(str(file), "bert", num_heads=config.heads, hidden_size=config.hidden_size)
