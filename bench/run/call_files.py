"""The files from which a worker reads what a call computes: batches of tokens or, with workload "embed", texts."""

import json
from dataclasses import dataclass
from pathlib import Path

from triglot.shared.checkpoint import npz
from triglot.shared.inputs import Batch, batch_from_arrays
from triglot.shared.model.config import ModelConfig

TEXTS = ".json"  # the ending of a file with texts


@dataclass(frozen=True)
class Texts:
    """Texts, and the file ``tokenizer.json`` of their model. Its folder is that of the model."""

    texts: list[str]
    tokenizer: Path


def write(path: Path, call: Batch | Texts) -> None:
    """Write one batch, or the texts of a call. ``path`` of texts ends in ``TEXTS``."""
    if isinstance(call, Texts):
        path.write_text(json.dumps({"texts": call.texts, "tokenizer": str(call.tokenizer)}))
    else:
        npz.write(path, call.arrays())


def read(path: Path, config: ModelConfig) -> Batch | Texts:
    """Return what ``write`` wrote. ``config``: that of the model."""
    if path.suffix != TEXTS:
        return batch_from_arrays(config, npz.read(path))
    content = json.loads(path.read_text())
    return Texts(content["texts"], Path(content["tokenizer"]))
