"""Originals in sentence-transformers: a folder, from tokens to vector."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from triglot.parity.originals import Original
from triglot.parity.output_names import API, ENCODE
from triglot.shared.arrays import Array
from triglot.shared.inputs import Batch, EncoderBatch


def run(original: Original, batches: Sequence[Batch], dtype: str) -> list[dict[str, Array]]:
    """Return the results of the model for each batch; see ``originals``."""
    model: Any = SentenceTransformer(str(original.path), device="cpu", local_files_only=True, trust_remote_code=False)
    model.to(getattr(torch, dtype)).eval()
    with torch.inference_mode():
        return [_run(model, batch) for batch in batches]


def _run(model: Any, batch: Batch) -> dict[str, Array]:
    assert isinstance(batch, EncoderBatch)
    arrays = {"input_ids": batch.source, "attention_mask": batch.valid}
    arrays |= {} if batch.segment_ids is None else {"token_type_ids": batch.segment_ids}
    features = model({name: torch.from_numpy(np.asarray(array)).long() for name, array in arrays.items()})
    return {
        ENCODE: features["token_embeddings"].numpy(),
        f"{API}.heads.sentence_embedding": features["sentence_embedding"].numpy(),
    }
