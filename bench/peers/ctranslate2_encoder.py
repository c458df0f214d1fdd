"""CTranslate2 as an arm: its encoder, converted from the transformers model that Triglot ports the weights to."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.converters import TransformersConverter

from triglot.bench.run.cases import Case
from triglot.shared import porting
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.inputs import EncoderBatch


class CTranslate2Arm:
    """An encoder with the threads of the case, and its batches, whose padding is at the right."""

    def __init__(self, checkpoint: Checkpoint, case: Case, batches: Sequence[EncoderBatch]) -> None:
        self.names = ["output", *checkpoint.config.heads_on_top]
        self.use(batches)
        with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
            source, target = Path(folder) / "bert", Path(folder) / "converted"
            porting.write(checkpoint, source, "huggingface")
            config = json.loads((source / "config.json").read_text())
            # The converter reads a field that transformers no longer writes.
            (source / "config.json").write_text(json.dumps({**config, "position_embedding_type": "absolute"}))
            TransformersConverter(str(source)).convert(str(target))
            self.encoder = ctranslate2.Encoder(
                str(target), device="cpu", compute_type=case.cell.dtype, intra_threads=case.cell.threads
            )

    def use(self, batches: Sequence[EncoderBatch]) -> None:
        """Compute these batches from now on."""
        self.inputs: list[tuple[Any, Any, list[list[int]] | None]] = []
        for batch in batches:
            lengths = batch.valid.sum(axis=1).astype(np.int32)
            assert (batch.valid == (np.arange(batch.valid.shape[1]) < lengths[:, None])).all()
            segments = None if batch.segment_ids is None else batch.segment_ids.tolist()
            self.inputs.append((_view(batch.source.astype(np.int32)), _view(lengths), segments))

    def call(self) -> list[Any]:
        """Compute every batch."""
        return [self.encoder.forward_batch(*inputs) for inputs in self.inputs]

    def wait(self, results: list[Any]) -> None:
        """Do nothing: a call of the encoder waits itself."""

    def outputs(self, results: list[Any]) -> Mapping[str, Array]:
        """Return what the first call returned for the first batch."""
        values = np.array(results[0].last_hidden_state), np.array(results[0].pooler_output)
        return dict(zip(self.names, values, strict=False))  # without a pooler there is one name


def _view(array: Array) -> Any:
    return ctranslate2.StorageView.from_array(np.ascontiguousarray(array))
