"""Dialect ``huggingface``: encoders as the transformers library stores them.

A model is a folder with ``config.json`` and its weights, or a bare file of weights. Linear weights are (out, in).
``huggingface_families.py`` has the names, and ``huggingface_config.py`` translates the configuration.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from triglot.shared import files
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import PortingError, TriglotError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.recipes import ConfigOverride, configured
from triglot.shared.model.schema import MASKED_LM_TABLE
from triglot.shared.porting.containers import safetensors
from triglot.shared.porting.heads import WHY
from triglot.shared.porting.source import CONFIG_FILE, Source

from .dialect import Dialect
from .huggingface_config import (
    architectures_of,
    check_activation,
    check_names,
    family_of,
    family_of_bare_weights,
    from_json,
    heads_of,
    of_bare_weights,
    to_json,
)
from .huggingface_families import FAMILIES, Family, is_of_body
from .sizes import from_shapes
from .table import check_layers

WEIGHTS_FILE = "model.safetensors"

# Task models put it before the names of the body, not of their heads.
_PREFIX = re.compile(r"^(bert|ernie|roberta|distilbert|electra)\.")
_BUFFERS = ("embeddings.position_ids",)  # the numbers 0, 1, 2, ...
_TOKEN_TABLE = "embeddings.word_embeddings.weight"
# The table of tokens, and the first query weight.
_SIGNS = {
    _TOKEN_TABLE,
    *(family.table(()).name("encoder.layers.0.attention.query.weight", "linear_weight") for family in FAMILIES),
}


def sign(source: Source) -> str:
    """Return the name of the table of tokens or of the first query weight, if the source has it."""
    if source.is_neutral:
        return ""
    if source.has_modules:  # a folder of sentence-transformers, of which the encoder is a part
        return ""
    return next((name for name in source.tensors if _plain_name(name) in _SIGNS), "")


def read(source: Source, config: ConfigOverride = None) -> Checkpoint:
    """Read the model ``source`` as a checkpoint; ``config`` completes or corrects its configuration.

    Raises:
        PortingError: a file is unreadable, holds anything that cannot be translated without loss, or is bare weights
            and ``config`` does not say what they do not.
    """
    is_bare = source.fields is None
    tensors, names_in_file = _plain_tensors(source)
    try:
        configuration = _of_bare_weights if is_bare else _of_folder
        family, final = configuration(source, tensors, names_in_file, config)
        check_activation(family, final)
        table = family.table(final.heads_on_top)
        alias_names = _remove_duplicates(family, final, tensors, names_in_file)
        check_layers(final, tensors)
        left_out = _leave_out_heads(source, {*table.names(final).values()}, tensors, names_in_file)
        table.check(
            final,
            tensors,
            names_in_file,
            f"expected exactly the tensors of type {' or '.join(family.model_types)}, with supported heads only; "
            "restore missing tensors, leave other heads out (heads=, or --heads on the command line), or correct the "
            "configuration",
            hint=lambda name: _hint(family, final, name),
        )
    except TriglotError as error:
        raise PortingError(f"cannot port {source.path}: {error}") from error
    source_names = alias_names | {name: names_in_file[native] for name, native in table.names(final).items()}
    return Checkpoint(final, table.to_canonical(final, tensors), source_names, left_out=left_out)


def _of_folder(
    source: Source, tensors: Mapping[str, Array], names_in_file: Mapping[str, str], override: ConfigOverride
) -> tuple[Family, ModelConfig]:
    """Return the family and the configuration of a folder."""
    fields = source.fields or {}
    family = family_of(fields)
    check_names(family, names_in_file.values())
    heads = heads_of(family, tensors, source.heads, architectures_of(fields))
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    classes = from_shapes(family.table(heads), shapes).get("classes", 0)
    return family, configured(from_json(family, fields, heads, classes).to_dict(), override)


def _of_bare_weights(
    source: Source, tensors: Mapping[str, Array], names_in_file: Mapping[str, str], override: ConfigOverride
) -> tuple[Family, ModelConfig]:
    """Return the family and the configuration of a bare file of weights."""
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    family = family_of_bare_weights(names_in_file.values(), override)
    if isinstance(override, str | ModelConfig):
        return family, configured({}, override)
    given = {name: value for name, value in (override or {}).items() if name != "model_type"}
    return family, configured(of_bare_weights(family, shapes, heads_of(family, tensors, source.heads), given), given)


def write(checkpoint: Checkpoint, target: Path) -> None:
    """Write the folder ``target``, which must not exist or must be empty, completely or not at all.

    Raises:
        PortingError: this dialect cannot express the model.
        OutputError: the target cannot be written.
    """
    fields, tensors = to_write(checkpoint)
    with files.writing_folder(target) as folder:
        write_files(folder, fields, tensors)


def to_write(checkpoint: Checkpoint) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the content of ``config.json``, and the tensors by name.

    Raises:
        PortingError: this dialect cannot express the model.
    """
    config = checkpoint.config
    family, json_fields = to_json(config)
    prefix = "" if set(config.heads_on_top) <= {"pooler"} else family.prefix_of(json_fields["model_type"])
    tensors = {
        prefix + name if is_of_body(name) else name: tensor
        for name, tensor in family.table(config.heads_on_top).from_canonical(checkpoint).items()
    }
    if family.duplicate_bias and family.decoder in tensors:
        tensors[family.duplicate_bias] = tensors[family.bias]  # of an untied decoder, transformers stores both
    return json_fields, tensors


def write_files(folder: Path, fields: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
    """Write a configuration and weights into a folder.

    Raises:
        OSError, ValueError: a file cannot be written.
    """
    (folder / CONFIG_FILE).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    with (folder / WEIGHTS_FILE).open("wb") as file:
        safetensors.write(file, tensors)


def _remove_duplicates(
    family: Family, config: ModelConfig, tensors: dict[str, Array], names_in_file: dict[str, str]
) -> dict[str, str]:
    """Keep one name of each tensor that files store twice; return the file's names of removed aliases, by alias.

    A tied decoder and its bias may be present or not. An untied decoder computes with its own bias; the other one,
    which transformers stores beside it, affects no result.
    """
    if "masked_lm" not in config.heads_on_top:
        return {}
    if family.duplicate_bias in tensors:
        if config.tied_embeddings and family.bias in tensors:
            _check_equal(family.bias, family.duplicate_bias, tensors)
        tensors[family.bias] = tensors.pop(family.duplicate_bias)
        names_in_file[family.bias] = names_in_file[family.duplicate_bias]
    if not config.tied_embeddings or family.decoder not in tensors:
        return {}
    _check_equal(_TOKEN_TABLE, family.decoder, tensors)
    del tensors[family.decoder]
    return {MASKED_LM_TABLE: names_in_file[family.decoder]}


def _check_equal(name: str, duplicate: str, tensors: Mapping[str, Array]) -> None:
    if name in tensors and not np.array_equal(tensors[name], tensors[duplicate]):
        raise PortingError(
            f"{duplicate} differs from {name}, but the configuration ties them; set tie_word_embeddings in "
            f"{CONFIG_FILE} (tied_embeddings in a configuration of Triglot) to false, or remove {duplicate}"
        )


def _leave_out_heads(
    source: Source, expected: Collection[str], tensors: dict[str, Array], names_in_file: Mapping[str, str]
) -> dict[str, str]:
    """Remove the tensors of heads that the user does not keep; return their names in the file, and why."""
    if source.heads is None:
        return {}
    dropped = [
        name for name in tensors if name not in expected and (not is_of_body(name) or name.startswith("pooler."))
    ]
    for name in dropped:
        del tensors[name]
    return {names_in_file[name]: WHY for name in dropped}


def _hint(family: Family, config: ModelConfig, name: str) -> str:
    """Return how to accept an unexpected tensor, if it belongs to a head that the configuration does not have."""
    for head in [head for head in family.shown_by if head not in config.heads_on_top]:
        paths = [path for path in family.modules if path.split(".")[:2] == ["heads", head]]
        if any(name.startswith(f"{family.modules[path]}.") for path in paths):
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
    f"a folder with {CONFIG_FILE} and {WEIGHTS_FILE} or pytorch_model.bin (one file or sharded), or bare weights",
    sign,
    read,
    write,
    check_target=files.check_folder,
)
