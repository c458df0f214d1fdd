"""Originals in transformers: the class that config.json names, or the one that the port would write."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from triglot.parity.originals import Original
from triglot.parity.output_names import API, ENCODE
from triglot.shared.arrays import Array
from triglot.shared.inputs import Batch, EncoderBatch
from triglot.shared.porting import containers
from triglot.shared.porting.dialects.huggingface import LIBRARY
from triglot.shared.porting.dialects.huggingface_config import to_json
from triglot.shared.porting.source import CONFIG_FILE

# The heads in Triglot of the outputs of a class, by the end of its name.
_OUTPUTS = {
    "Model": {"pooler_output": "pooler"},
    "ForMaskedLM": {"logits": "masked_lm"},
    "ForNextSentencePrediction": {"logits": "next_sentence"},
    "ForPreTraining": {
        "prediction_logits": "masked_lm",
        "seq_relationship_logits": "next_sentence",
        "logits": "replaced_token",
    },
    "ForSequenceClassification": {"logits": "sequence_classifier"},
    "ForTokenClassification": {"logits": "token_classifier"},
}


def run(original: Original, batches: Sequence[Batch], dtype: str) -> list[dict[str, Array]]:
    """Return the results of the model for each batch; see ``originals``."""
    with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
        model = _load(original, Path(folder), dtype)
    start = len(type(model).config_class.__name__.removesuffix("Config"))
    heads = _OUTPUTS.get(type(model).__name__[start:], {})
    return [_run(model, heads, batch) for batch in batches]


def _load(original: Original, folder: Path, dtype: str) -> Any:
    path = original.path
    if path.is_file():
        path = folder
        fields = to_json(LIBRARY, original.config)[1]
        (folder / CONFIG_FILE).write_text(json.dumps(fields), encoding="utf-8")
        name = "pytorch_model.bin" if containers.find(original.path) is containers.torch else "model.safetensors"
        os.symlink(original.path.resolve(), folder / name)
    config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    names = [name for name in config.architectures or () if hasattr(transformers, name)]
    model: Any = getattr(transformers, names[0]) if names else transformers.AutoModel
    return model.from_pretrained(path, local_files_only=True, dtype=getattr(torch, dtype)).eval()


def _run(model: Any, heads: dict[str, str], batch: Batch) -> dict[str, Array]:
    assert isinstance(batch, EncoderBatch)
    arrays = {"input_ids": batch.source, "attention_mask": batch.valid}
    arrays |= {} if batch.segment_ids is None else {"token_type_ids": batch.segment_ids}
    arrays |= {} if batch.task_ids is None else {"task_type_ids": batch.task_ids}
    with torch.inference_mode():
        result = model(
            **{name: torch.from_numpy(np.asarray(array)).long() for name, array in arrays.items()},
            output_hidden_states=True,
        )
    values = {ENCODE: result.hidden_states[-1].numpy()}
    for output, head in heads.items():
        if result.get(output) is not None:
            values[f"{API}.heads.{head}"] = result[output].numpy()
    return values
