"""Dialect ``huggingface``: BERT and ERNIE as the transformers library stores them.

A model is a folder with ``config.json`` and ``model.safetensors``, or the bare ``.safetensors`` file. Linear weights
are (out, in) there and transposed here; which weights are linear is known from the schema, never guessed from a shape.
The configuration is translated in ``huggingface_config.py``, the names in ``huggingface_names.py``.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

from triglot.shared import files
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import OutputError, PortingError, TriglotError
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.overrides import Given, configured
from triglot.shared.model.schema import MASKED_LM_TABLE, TOKEN_TABLE
from triglot.shared.porting.containers import safetensors as safetensors_file

from .huggingface_config import CONFIG_FILE, described, from_names, translated
from .huggingface_names import names

WEIGHTS_FILE = "model.safetensors"
SHARDS_FILE = f"{WEIGHTS_FILE}.index.json"
EXPECTED = f"a folder with {CONFIG_FILE} and {WEIGHTS_FILE}, or a bare .safetensors file"

_PREFIX = re.compile(r"^(bert|ernie)\.")  # task models put it before the body, not before their heads
_MOST_PROBLEMS = 6  # what is named of each kind in one message
_BUFFERS = ("embeddings.position_ids",)  # the numbers 0, 1, 2, ...
_DECODER, _DECODER_BIAS, _BIAS = (f"cls.predictions.{name}" for name in ("decoder.weight", "decoder.bias", "bias"))


def recognises(source: Path) -> bool:
    """Whether ``source`` is a folder with the two files of this dialect, or a .safetensors file."""
    if source.is_file():
        return source.suffix == ".safetensors"
    return (source / CONFIG_FILE).is_file() and (source / WEIGHTS_FILE).is_file()


def read(source: Path, config: Given = None) -> Checkpoint:
    """The model in ``source`` as a neutral checkpoint; ``config`` completes or corrects its configuration.

    Raises:
        PortingError: a file is unreadable, holds something that cannot be translated without loss, or, for a bare
            file, ``config`` does not say what the weights cannot.
    """
    bare = source.is_file()
    fields = {} if bare else _read_json(source / CONFIG_FILE)
    tensors, original = _read_tensors(source if bare else source / WEIGHTS_FILE)
    try:
        if not bare:
            known = translated(fields, tensors).to_dict()
        elif isinstance(config, str | ModelConfig):
            known = {}
        else:
            known = from_names({name: tensor.shape for name, tensor in tensors.items()}, config or {})
        final = configured(known, config)
        _check_size(final, tensors)
        source_names = _settle_ties(final, tensors, original)
        native = names(final)
        _check(final, native, tensors, original)
    except TriglotError as error:
        raise PortingError(f"cannot port {source}: {error}") from error
    parameters = schema.parameters(final)
    found = {name: _transposed_if_linear(tensors[theirs], parameters[name]) for name, theirs in native.items()}
    source_names |= {name: original[theirs] for name, theirs in native.items()}
    return Checkpoint(final, found, source_names)


def write(given: Checkpoint, target: Path) -> None:
    """Write the folder ``target``, which must not exist yet, or be empty: whole, or not at all.

    Raises:
        PortingError: the model has something that this dialect cannot express.
        OutputError: the target cannot be written.
    """
    fields, native = described(given.config), names(given.config)
    parameters = schema.parameters(given.config)
    body = "" if set(given.config.heads_on_top) <= {"pooler"} else f"{fields['model_type']}."
    tensors: dict[str, Array] = {}
    for name, theirs in native.items():
        prefix = "" if theirs.startswith("cls.") else body
        # safetensors 0.8.0 writes the memory of a transposed array as if it were in order.
        tensors[prefix + theirs] = np.asarray(_transposed_if_linear(given.tensors[name], parameters[name]), order="C")
    if MASKED_LM_TABLE in native:
        tensors[_DECODER_BIAS] = tensors[_BIAS]  # an untied decoder has the bias under both names
    target = target.absolute()  # "." has no parent
    files.check_folder(target)
    try:
        with tempfile.TemporaryDirectory(prefix=".", suffix=".part", dir=target.parent) as temporary:
            folder = Path(temporary) / "model"
            folder.mkdir()
            (folder / CONFIG_FILE).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
            shutil.copymode(folder / CONFIG_FILE, folder / WEIGHTS_FILE)  # safetensors makes it the owner's alone
            files.sync(folder / CONFIG_FILE, folder / WEIGHTS_FILE, folder)
            os.rename(folder, target)
            files.sync(target.parent)
    except (OSError, ValueError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputError(f"cannot write {target}: {reason}; free space, or choose another target") from error


def _transposed_if_linear(tensor: Array, parameter: schema.Parameter) -> Array:
    return np.ascontiguousarray(tensor.T) if parameter.role == "linear_weight" else tensor


def _check_size(config: ModelConfig, tensors: Mapping[str, Array]) -> None:
    if config.layers > len(tensors):  # before as many names are made up
        raise PortingError(
            f"{len(tensors)} tensors cannot be {config.layers} layers; the configuration belongs to another model"
        )


def _settle_ties(config: ModelConfig, tensors: dict[str, Array], original: dict[str, str]) -> dict[str, str]:
    """Leave one name for what files store under two; the source names of what is gone, by alias.

    A tied decoder may be there or not, and its bias too. An untied decoder computes with its own bias, and then
    ``cls.predictions.bias``, which transformers stores beside it, takes no part in anything.
    """
    if "masked_lm" not in config.heads_on_top:
        return {}
    if _DECODER_BIAS in tensors:
        if config.tied_embeddings and _BIAS in tensors:
            _check_equal(_BIAS, _DECODER_BIAS, tensors)
        tensors[_BIAS], original[_BIAS] = tensors.pop(_DECODER_BIAS), original[_DECODER_BIAS]
    if not config.tied_embeddings or _DECODER not in tensors:
        return {}
    _check_equal(names(config)[TOKEN_TABLE], _DECODER, tensors)
    del tensors[_DECODER]
    return {MASKED_LM_TABLE: original[_DECODER]}


def _check_equal(kept: str, other: str, tensors: Mapping[str, Array]) -> None:
    if kept in tensors and not np.array_equal(tensors[kept], tensors[other]):
        raise PortingError(
            f"{other} differs from {kept}, but the configuration ties them; set tie_word_embeddings in {CONFIG_FILE} "
            f"(tied_embeddings in a configuration of Triglot) to false, or remove {other}"
        )


def _check(config: ModelConfig, native: Mapping[str, str], tensors: Mapping[str, Array], original: Any) -> None:
    known = set(native.values())
    problems = _first("missing", [f"missing {name}" for name in native.values() if name not in tensors])
    extra = [f"no place for {original[name]}{_head_of(name)}" for name in tensors if name not in known]
    problems += _first("without a place", extra)
    if problems:
        raise PortingError(
            f"{'; '.join(problems)}; expected the encoder of a BERT or ERNIE, its pooler and the heads of its "
            "pre-training, no more; save the model without other heads, or correct the configuration"
        )
    parameters = schema.parameters(config)
    for name, theirs in native.items():
        shape = parameters[name].shape
        shape = shape[::-1] if parameters[name].role == "linear_weight" else shape
        if tensors[theirs].shape != shape:
            raise PortingError(
                f"{original[theirs]} has shape {tensors[theirs].shape}, expected {shape}; "
                "the configuration belongs to another model"
            )


def _first(what: str, problems: list[str]) -> list[str]:
    """As many as one message can hold, and the number of the others."""
    others = len(problems) - _MOST_PROBLEMS
    return problems if others <= 0 else [*problems[:_MOST_PROBLEMS], f"{others} more {what}"]


def _head_of(name: str) -> str:
    """The head that a tensor belongs to, in words, for who left it out of the configuration."""
    for head, path in (("masked_lm", "cls.predictions."), ("next_sentence", "cls.seq_"), ("pooler", "pooler.")):
        if name.startswith(path):
            return f" (add {head} to heads_on_top)"
    return ""


def _read_json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PortingError(f"cannot read {path}: {error}; restore the file") from error
    if not isinstance(fields, dict):
        raise PortingError(f"cannot read {path}: it holds no JSON object; restore the file")
    return cast("dict[str, Any]", fields)


def _read_tensors(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors under plain names, and what each plain name was in the file."""
    tensors: dict[str, Array] = {}
    original: dict[str, str] = {}
    for name, tensor in safetensors_file.read(path, lambda name: _plain(name) in _BUFFERS).items():
        plain = _plain(name)
        if plain in tensors:
            raise PortingError(
                f"cannot read {path}: {plain} occurs twice, as {original[plain]} and {name}; keep one of them"
            )
        tensors[plain], original[plain] = tensor, name
    return tensors, original


def _plain(name: str) -> str:
    """Without the prefix that task models put before the body, and in today's words for the norm's parameters."""
    plain = _PREFIX.sub("", name)
    return plain.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
