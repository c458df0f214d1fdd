"""Triglot's own model as an ONNX file, exported by PyTorch; names and inputs of the engines that run such files."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from triglot import impls
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


def output_names(checkpoint: Checkpoint) -> list[str]:
    """Return the names of the outputs of the file."""
    return ["output", *checkpoint.config.heads_on_top]


def inputs_of(batches: Sequence[EncoderBatch]) -> list[dict[str, Array]]:
    """Return the inputs of each batch, by the names in the file."""
    return [
        {name: arrays[name] for name in ("source", "valid", "segment_ids") if name in arrays}
        for arrays in (batch.arrays() for batch in batches)
    ]


@contextmanager
def exported(checkpoint: Checkpoint, inputs: Sequence[Mapping[str, Array]]) -> Iterator[Path]:
    """Yield the file, which is removed afterwards. Its shapes are dynamic if there are several batches."""
    model: Any = impls.build("torch", checkpoint)
    example = tuple(torch.from_numpy(array.copy()) for array in inputs[0].values())
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=checkpoint.config.source_max_length)
    with tempfile.TemporaryDirectory(prefix="triglot-") as folder, torch.inference_mode():
        file = Path(folder) / "model.onnx"
        torch.onnx.export(
            _Exported(model.backend.transformer).eval(),
            example,
            file,
            input_names=list(inputs[0]),
            output_names=output_names(checkpoint),
            dynamic_shapes=tuple({0: batch, 1: length} for _ in example) if len(inputs) > 1 else None,
            dynamo=True,
            verbose=False,
        )
        yield file
