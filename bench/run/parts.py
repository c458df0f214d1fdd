"""The files from which a worker reads the parts of a call: its batches or, with workload "embed", its texts."""

import json
from pathlib import Path

from triglot.shared import files
from triglot.shared.checkpoint import npz
from triglot.shared.inputs import Batch, batch_from_arrays
from triglot.shared.model.config import ModelConfig

from .texts import Texts

Part = Batch | Texts


def write(part: Part, path: Path) -> Path:
    """Write a part, and return its file: ``path`` with an ending.

    Raises:
        OutputError: the file cannot be written.
    """
    if not isinstance(part, Texts):
        target = path.with_suffix(".npz")
        npz.write(target, part.arrays())
        return target
    target = path.with_suffix(".json")
    content = {"texts": part.texts, "tokenizer": str(part.tokenizer), "folder": str(part.folder)}
    with files.writing(target) as file:
        file.write(json.dumps(content).encode())
    return target


def read(path: Path, config: ModelConfig) -> Part:
    """Return the part in a file. ``config`` is the model's configuration."""
    if path.suffix == ".npz":
        return batch_from_arrays(config, npz.read(path))
    content = json.loads(path.read_text())
    return Texts(content["texts"], Path(content["tokenizer"]), Path(content["folder"]))
