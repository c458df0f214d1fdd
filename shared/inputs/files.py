"""Batches in files."""

from pathlib import Path

import numpy as np

from triglot.shared.errors import InputError
from triglot.shared.model.config import ModelConfig

from .attention import attention_batch
from .batch import Batch
from .encoder import encoder_batch
from .pair import pair_batch

# For each kind of model: the function that makes its batch, the arrays that it needs, and those that it also takes.
_CONTENTS = {
    "encoder": (encoder_batch, ("token_ids",), ("valid", "segment_ids", "task_ids")),
    "encoder_decoder": (pair_batch, ("source_ids", "target_ids"), ("source_valid", "target_valid")),
    "attention": (attention_batch, ("query", "key", "value"), ("allowed", "key_valid", "bias")),
}


def read_batch(config: ModelConfig, path: Path) -> Batch:
    """Read a batch from an ``.npz`` file of NumPy.

    For an encoder it holds ``token_ids`` and optionally ``valid``, ``segment_ids`` and ``task_ids``; for an
    encoder-decoder ``source_ids`` and ``target_ids``, optionally ``source_valid`` and ``target_valid``; for attention
    alone ``query``, ``key`` and ``value``, optionally ``allowed``, ``key_valid`` and ``bias``.

    Raises:
        InputError: the file cannot be read, holds something else, or does not fit the model.
    """
    make_batch, needed, optional = _CONTENTS[config.kind]
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
            if not all(isinstance(array, np.ndarray) for array in arrays.values()):
                raise ValueError("a member is not an array")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; give an .npz of NumPy") from error
    except Exception as error:  # damaged files make np.load raise many more errors than the three it documents
        raise InputError(f"cannot read {path}: it is not an .npz of plain arrays; write it with numpy.savez") from error
    expected = ", ".join((*needed, *optional))
    if unknown := sorted(set(arrays) - {*needed, *optional}):
        raise InputError(f"{path} holds {', '.join(unknown)}; expected {expected}")
    if missing := [name for name in needed if name not in arrays]:
        raise InputError(f"{path} lacks {', '.join(missing)}; expected {expected}")
    return make_batch(config, **arrays)
