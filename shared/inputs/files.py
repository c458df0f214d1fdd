"""Batches in files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from triglot.shared.arrays import Array
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
# The names under which the tokenizers of transformers return the same arrays.
_OF_TOKENIZERS = {
    "encoder": {
        "input_ids": "token_ids",
        "attention_mask": "valid",
        "token_type_ids": "segment_ids",
        "task_type_ids": "task_ids",
    },
    "encoder_decoder": {
        "input_ids": "source_ids",
        "attention_mask": "source_valid",
        "decoder_input_ids": "target_ids",
        "decoder_attention_mask": "target_valid",
    },
    "attention": {},
}
_MASKS = ("valid", "source_valid", "target_valid", "key_valid", "allowed")


def read_batch(config: ModelConfig, path: Path) -> Batch:
    """Read a batch from an ``.npz`` file of NumPy.

    For an encoder it holds ``token_ids`` and optionally ``valid``, ``segment_ids`` and ``task_ids``; for an
    encoder-decoder ``source_ids`` and ``target_ids``, optionally ``source_valid`` and ``target_valid``; for attention
    alone ``query``, ``key`` and ``value``, optionally ``allowed``, ``key_valid`` and ``bias``. The names of tokenizers
    will do as well, and masks may be 0 and 1.

    Raises:
        InputError: the file cannot be read, holds something else, or does not fit the model.
    """
    return batch_in(config, path, read_arrays(path))


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays in an ``.npz`` file of NumPy.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
            if not all(isinstance(array, np.ndarray) for array in arrays.values()):
                raise ValueError("a member is not an array")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; give an .npz of NumPy") from error
    except Exception as error:  # damaged files make np.load raise many more errors than the three it documents
        raise InputError(f"cannot read {path}: it is not an .npz of plain arrays; write it with numpy.savez") from error
    return arrays


def batch_in(config: ModelConfig, path: Path, arrays: Mapping[str, Array]) -> Batch:
    """Return the batch in the ``arrays`` of the file ``path``; see ``read_batch``.

    Raises:
        InputError: they are not a batch, or do not fit the model.
    """
    make_batch, needed, optional = _CONTENTS[config.kind]
    arrays = _named(path, arrays, _OF_TOKENIZERS[config.kind])
    if not config.segments and not np.any(arrays.get("segment_ids", 0)):
        arrays.pop("segment_ids", None)  # tokenizers return zeros even for models without segments
    expected = ", ".join((*needed, *optional))
    if unknown := sorted(set(arrays) - {*needed, *optional}):
        raise InputError(f"{path} holds {', '.join(unknown)}; expected {expected}")
    if missing := [name for name in needed if name not in arrays]:
        raise InputError(f"{path} lacks {', '.join(missing)}; expected {expected}")
    return make_batch(config, **arrays)


def _named(path: Path, arrays: Mapping[str, Array], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the arrays under our names, with masks as booleans."""
    renamed = {names.get(name, name): array for name, array in arrays.items()}
    if len(renamed) != len(arrays):
        twice = next(name for name in arrays if names.get(name, name) != name and names[name] in arrays)
        raise InputError(f"{path} holds both {twice} and {names[twice]}; keep one of them")
    for name in _MASKS:
        if name in renamed and renamed[name].dtype.kind in "iu" and np.isin(renamed[name], (0, 1)).all():
            renamed[name] = renamed[name].astype(np.bool_)
    return renamed
