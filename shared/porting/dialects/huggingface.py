"""Dialect ``huggingface``: BERT and ERNIE as the transformers library stores them.

A model is a folder with ``config.json`` and ``model.safetensors``, or the bare ``.safetensors`` file. Linear weights
are (out, in). ``huggingface_config.py`` translates the configuration.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from triglot.shared import files
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import OutputError, PortingError, TriglotError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.recipes import ConfigOverride, configured
from triglot.shared.model.schema import MASKED_LM_TABLE
from triglot.shared.porting.containers import safetensors
from triglot.shared.porting.source import CONFIG_FILE, Source

from .dialect import Dialect
from .huggingface_config import from_json, from_shapes, to_json
from .table import Table, attention

WEIGHTS_FILE = "model.safetensors"
SHARDS_FILE = f"{WEIGHTS_FILE}.index.json"

_PREFIX = re.compile(r"^(bert|ernie)\.")  # task models put it before the names of the body, not of their heads
_BUFFERS = ("embeddings.position_ids",)  # the numbers 0, 1, 2, ...
_TOKEN_TABLE = "embeddings.word_embeddings.weight"
_DECODER, _DECODER_BIAS, _BIAS = (f"cls.predictions.{name}" for name in ("decoder.weight", "decoder.bias", "bias"))

_PROJECTIONS = ("self.query", "self.key", "self.value", "output.dense")
_LAYER = "encoder.layer.{index}"
TABLE = Table(
    "huggingface",
    {
        "embeddings.token": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.segment": "embeddings.token_type_embeddings",
        "embeddings.task": "embeddings.task_type_embeddings",
        "embeddings.process.norm": "embeddings.LayerNorm",
        **attention("encoder.layers.N.attention", f"{_LAYER}.attention.", _PROJECTIONS),
        "encoder.layers.N.post_attention.norm": f"{_LAYER}.attention.output.LayerNorm",
        "encoder.layers.N.feed_forward.inner": f"{_LAYER}.intermediate.dense",
        "encoder.layers.N.feed_forward.output": f"{_LAYER}.output.dense",
        "encoder.layers.N.post_feed_forward.norm": f"{_LAYER}.output.LayerNorm",
        "heads.pooler": "pooler.dense",
        "heads.masked_lm.transform": "cls.predictions.transform.dense",
        "heads.masked_lm.norm": "cls.predictions.transform.LayerNorm",
        "heads.masked_lm.decoder": "cls.predictions.decoder",
        "heads.masked_lm": "cls.predictions",
        "heads.next_sentence": "cls.seq_relationship",
    },
)


def sign(source: Source) -> str:
    """Return the name of the table of tokens or of the first query weight, if the source has it."""
    if source.is_neutral:
        return ""
    shown_by = (_TOKEN_TABLE, "encoder.layer.0.attention.self.query.weight")
    return next((name for name in source.tensors if _plain_name(name) in shown_by), "")


def read(source: Source, config: ConfigOverride = None) -> Checkpoint:
    """Read the model ``source`` as a checkpoint; ``config`` completes or corrects its configuration.

    Raises:
        PortingError: a file is unreadable, holds anything that cannot be translated without loss, or is bare weights
            and ``config`` does not say what they do not.
    """
    is_bare, json_fields = source.fields is None, source.fields or {}
    tensors, names_in_file = _plain_tensors(source)
    try:
        if not is_bare:
            config_fields = from_json(json_fields, tensors).to_dict()
        elif isinstance(config, str | ModelConfig):
            config_fields = {}
        else:
            shapes = {name: tensor.shape for name, tensor in tensors.items()}
            config_fields = from_shapes(TABLE, shapes, config or {})
        final = configured(config_fields, config)
        alias_names = _remove_duplicates(final, tensors, names_in_file)
        TABLE.check(
            final,
            tensors,
            names_in_file,
            "expected exactly the encoder of a BERT or ERNIE, its pooler and its pre-training heads; save the model "
            "without other heads, or pass the configuration of these weights",
            hint=_hint,
        )
    except TriglotError as error:
        raise PortingError(f"cannot port {source.path}: {error}") from error
    source_names = alias_names | {name: names_in_file[native] for name, native in TABLE.names(final).items()}
    return Checkpoint(final, TABLE.to_canonical(final, tensors), source_names)


def write(checkpoint: Checkpoint, target: Path) -> None:
    """Write the folder ``target``, which must not exist or must be empty, completely or not at all.

    Raises:
        PortingError: this dialect cannot express the model.
        OutputError: the target cannot be written.
    """
    config = checkpoint.config
    json_fields = to_json(config)
    prefix = "" if set(config.heads_on_top) <= {"pooler"} else f"{json_fields['model_type']}."
    tensors = {
        name if name.startswith("cls.") else prefix + name: tensor
        for name, tensor in TABLE.from_canonical(checkpoint).items()
    }
    if _DECODER in tensors:
        tensors[_DECODER_BIAS] = tensors[_BIAS]  # transformers stores the bias of an untied decoder under both names
    target = target.absolute()  # "." has no parent
    files.check_folder(target)
    try:
        with tempfile.TemporaryDirectory(prefix=".", suffix=".part", dir=target.parent) as temporary:
            folder = Path(temporary) / "model"
            folder.mkdir()
            (folder / CONFIG_FILE).write_text(
                json.dumps(json_fields, indent=2, sort_keys=True) + "\n", encoding="utf-8"
            )
            with (folder / WEIGHTS_FILE).open("wb") as file:
                safetensors.write(file, tensors)
            files.sync(folder / CONFIG_FILE, folder / WEIGHTS_FILE, folder)
            os.rename(folder, target)
            files.sync(target.parent)
    except (OSError, ValueError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputError(f"cannot write {target}: {reason}; free space, or choose another target") from error


def _remove_duplicates(config: ModelConfig, tensors: dict[str, Array], names_in_file: dict[str, str]) -> dict[str, str]:
    """Keep one name of each tensor that files store twice; return the file's names of removed aliases, by alias.

    A tied decoder and its bias may be present or not. An untied decoder computes with its own bias, and
    ``cls.predictions.bias``, which transformers stores beside it, affects no result.
    """
    if "masked_lm" not in config.heads_on_top:
        return {}
    if _DECODER_BIAS in tensors:
        if config.tied_embeddings and _BIAS in tensors:
            _check_equal(_BIAS, _DECODER_BIAS, tensors)
        tensors[_BIAS], names_in_file[_BIAS] = tensors.pop(_DECODER_BIAS), names_in_file[_DECODER_BIAS]
    if not config.tied_embeddings or _DECODER not in tensors:
        return {}
    _check_equal(_TOKEN_TABLE, _DECODER, tensors)
    del tensors[_DECODER]
    return {MASKED_LM_TABLE: names_in_file[_DECODER]}


def _check_equal(name: str, duplicate: str, tensors: Mapping[str, Array]) -> None:
    if name in tensors and not np.array_equal(tensors[name], tensors[duplicate]):
        raise PortingError(
            f"{duplicate} differs from {name}, but the configuration ties them; set tie_word_embeddings in "
            f"{CONFIG_FILE} (tied_embeddings in a configuration of Triglot) to false, or remove {duplicate}"
        )


def _hint(name: str) -> str:
    """Return how to accept an unexpected tensor, if it belongs to a head that the configuration does not have."""
    for head, path in (("masked_lm", "cls.predictions."), ("next_sentence", "cls.seq_"), ("pooler", "pooler.")):
        if name.startswith(path):
            return f" (add {head} to heads_on_top)"
    return ""


def _plain_tensors(source: Source) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the tensors by plain name, without buffers, and the name in the file of each plain name."""
    tensors: dict[str, Array] = {}
    names_in_file: dict[str, str] = {}
    for name, tensor in source.tensors.items():
        plain = _plain_name(name)
        if plain in _BUFFERS:
            continue
        if plain in tensors:
            raise PortingError(
                f"cannot read {source.weights}: {plain} occurs twice, as {names_in_file[plain]} and {name}; keep one "
                "of them"
            )
        tensors[plain], names_in_file[plain] = tensor, name
    return tensors, names_in_file


def _plain_name(name: str) -> str:
    """Return ``name`` without the prefix of a task model, and with today's names of the norm's parameters."""
    plain = _PREFIX.sub("", name)
    return plain.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


DIALECT = Dialect(
    "huggingface",
    f"a folder with {CONFIG_FILE} and {WEIGHTS_FILE}, or a bare .safetensors file",
    sign,
    read,
    write,
    check_target=files.check_folder,
)
