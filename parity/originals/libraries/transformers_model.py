"""Originals in transformers: the class that config.json names, or the one that the port would write."""

import json
import re
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
from triglot.shared.errors import PortingError
from triglot.shared.inputs import Batch, EncoderBatch
from triglot.shared.porting import containers
from triglot.shared.porting.containers import safetensors
from triglot.shared.porting.dialects.huggingface import LIBRARY
from triglot.shared.porting.dialects.huggingface_config import to_json
from triglot.shared.porting.dialects.huggingface_families import is_of_body
from triglot.shared.porting.source import CONFIG_FILE

# Map the end of a class name to its outputs, and each output to its head in Triglot.
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
    """Return what the model computes of each batch; see ``originals``."""
    with tempfile.TemporaryDirectory(prefix="triglot-") as folder:
        model = _load(original, Path(folder), dtype)
    return [_run(model, _heads(type(model).__name__), batch) for batch in batches]


def _load(original: Original, folder: Path, dtype: str) -> Any:
    path, fields = original.path, to_json(LIBRARY, original.config)[1]
    if is_bare := not original.has_own_config:
        path = folder
        (folder / CONFIG_FILE).write_text(json.dumps(fields), encoding="utf-8")
        with (folder / "model.safetensors").open("wb") as file:
            safetensors.write(file, containers.read(original.path))
    # Never run code from the model folder.
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(path, **options)
    names = [name for name in (*(config.architectures or ()), *fields["architectures"]) if _heads(name)]
    model, loaded = getattr(transformers, names[0]).from_pretrained(
        path, config=config, dtype=getattr(torch, dtype), output_loading_info=True, **options
    )
    # The class must find all of its tensors in a bare file, and load every layer and embedding in it. Heads in the file
    # may be left out.
    names_left = [name for name in loaded["unexpected_keys"] if is_of_body(LIBRARY.plain_name(name))]
    if is_bare and (wrong := [*loaded["missing_keys"], *loaded["mismatched_keys"], *names_left]):
        raise PortingError(f"transformers and the file differ in {', '.join(map(str, wrong[:6]))}; port the file again")
    return model.eval()


def _heads(class_name: str) -> dict[str, str]:
    """Return the heads in Triglot of the outputs of a class of transformers; empty if it is not a known one."""
    match = re.fullmatch(
        r"(?:Bert|Ernie|Roberta|XLMRoberta|Camembert|DistilBert|Electra)(Model|For[A-Za-z]+)", class_name
    )
    return _OUTPUTS.get(match[1], {}) if match else {}


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
