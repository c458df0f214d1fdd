"""Dialect ``sentence-transformers``: a model folder of that library, from text to vector.

``modules.json`` lists its modules: the encoder, which the dialect ``huggingface`` reads and writes, a pooling, dense
layers, and a normalisation. ``sentence_transformers_config.py`` translates their configuration.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triglot.shared import files
from triglot.shared.arrays import FLOATS, Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.errors import PortingError, TriglotError
from triglot.shared.model.config import Head
from triglot.shared.model.recipes import ConfigOverride, configured
from triglot.shared.porting import containers
from triglot.shared.porting.containers import shards
from triglot.shared.porting.heads import with_heads
from triglot.shared.porting.source import CONFIG_FILE, MODULES_FILE, Source

from . import huggingface
from .dialect import Dialect, Layout
from .sentence_transformers_config import (
    LENGTH_FILE,
    NAME,
    SETTINGS_FILE,
    check_normalize,
    dense_to_json,
    modules_to_json,
    pooling_to_json,
    read_dense,
    read_modules,
    read_pooling,
    read_text_settings,
    text_to_json,
)
from .table import TRANSPOSED, UNCHANGED, Place
from .tokenizer_files import remark, tokenizer_files, write_tokenizer

_HEAD: Head = "sentence_embedding"
HEAD_IN_WORDS = f"the head {_HEAD}"  # its key in ``Checkpoint.left_out``
_WEIGHT, _BIAS = "linear.weight", "linear.bias"


def sign(source: Source) -> str:
    """Return the name of the list of modules, if the source has it."""
    return MODULES_FILE if source.has_modules else ""


def read(source: Source, config: ConfigOverride = None) -> Checkpoint:
    """Read the model ``source`` as a checkpoint; ``config`` completes or corrects its configuration.

    Raises:
        PortingError: a file is unreadable, or holds anything that cannot be translated without loss.
    """
    folder = source.path
    modules = read_modules(folder)
    for path in (modules.encoder, modules.pooling, *modules.dense):
        if not os.path.isdir(folder / path):
            raise PortingError(
                f"{folder / path} is missing, but {MODULES_FILE} lists it; restore the folder, or save the model again"
            )
    kept = None if source.heads is None else [head for head in source.heads if head != _HEAD]
    given: Mapping[str, Any] = config if isinstance(config, Mapping) else {}
    of_encoder = {name: value for name, value in given.items() if not name.startswith(("sentence_", "heads_on_top"))}
    encoder = huggingface.read(huggingface.LIBRARY, Source(folder / modules.encoder, kept), of_encoder)
    size = encoder.config.hidden_size
    fields: dict[str, Any] = {
        **encoder.config.to_dict(),
        "heads_on_top": [*encoder.config.heads_on_top, _HEAD],
        "sentence_pooling": read_pooling(folder / modules.pooling, size),
        "sentence_layers": [],
        "sentence_normalized": modules.normalize is not None,
    }
    tensors, source_names = dict(encoder.tensors), dict(encoder.source_names)
    transforms = dict(encoder.transforms)
    for number, path in enumerate(modules.dense):
        size_read, layer = read_dense(folder / path)
        if size_read != size:
            raise PortingError(
                f"{folder / path / CONFIG_FILE}: in_features is {size_read}; expected {size}, the size of what it reads"
            )
        size = layer.size
        fields["sentence_layers"].append({"size": size, "bias": layer.bias, "activation": layer.activation})
        for name, tensor in _dense_tensors(folder / path, size_read, size, bias=layer.bias).items():
            canonical = f"heads.{_HEAD}.dense.{number}.{name}"
            tensors[canonical] = tensor.T
            source_names[canonical] = (path / name).as_posix()
            transforms[canonical] = TRANSPOSED if tensor.ndim > 1 else UNCHANGED
    if modules.normalize is not None:
        check_normalize(folder / modules.normalize)
    text = read_text_settings(folder, folder / modules.encoder, encoder.config.source_max_length)
    tokenizer = tokenizer_files(folder, folder / modules.encoder)
    try:
        final = configured(fields, config)
        left_out = encoder.left_out
        return Checkpoint(
            final, tensors, source_names, left_out=left_out, transforms=transforms, text=text, tokenizer=tokenizer
        )
    except TriglotError as error:
        raise PortingError(f"cannot port {folder}: {error}") from error


def write(checkpoint: Checkpoint, target: Path) -> None:
    """Write the folder ``target``, which must not exist or must be empty, completely or not at all.

    It holds the tokenizer if the checkpoint was just read from a folder that does.

    Raises:
        PortingError: this dialect cannot express the model.
        OutputError: the target cannot be written.
    """
    config = checkpoint.config
    encoder = _encoder(checkpoint)
    dense = [dense_to_json(*of_layer) for of_layer in zip(config.sentence_sizes, config.sentence_layers, strict=False)]
    modules = modules_to_json(len(dense), normalized=config.sentence_normalized)
    assert checkpoint.text is not None  # see _encoder
    settings, length = text_to_json(checkpoint.text)
    with files.writing_folder(target) as folder:
        huggingface.write_files(huggingface.LIBRARY, encoder, folder)
        _write_json(folder / MODULES_FILE, modules)
        _write_json(folder / SETTINGS_FILE, settings)
        _write_json(folder / LENGTH_FILE, length)
        write_tokenizer(checkpoint, folder)
        paths = [folder / module["path"] for module in modules[1:]]
        for path in paths:
            path.mkdir()
        _write_json(paths[0] / CONFIG_FILE, pooling_to_json(config.hidden_size, config.sentence_pooling))
        for number, layer in enumerate(dense):
            start = f"heads.{_HEAD}.dense.{number}."
            stored = {name: checkpoint.tensors[start + name].T for name in _names(bias=layer["bias"])}
            _write_json(paths[1 + number] / CONFIG_FILE, layer)
            shards.write(paths[1 + number], stored, None)
        if config.sentence_normalized:
            _write_json(paths[-1] / CONFIG_FILE, {})


def layout(checkpoint: Checkpoint, target: Path) -> Layout:
    """See ``Dialect.layout``."""
    config = checkpoint.config
    of_encoder = huggingface.layout(huggingface.LIBRARY, _encoder(checkpoint), target)
    places = dict(of_encoder.places)
    modules = modules_to_json(len(config.sentence_layers), normalized=config.sentence_normalized)
    for number, layer in enumerate(config.sentence_layers):
        size_read, size = config.sentence_sizes[number : number + 2]
        for name in _names(bias=layer.bias):
            is_weight = name == _WEIGHT
            shape = (size, size_read) if is_weight else (size,)
            path = f"{modules[2 + number]['path']}/{name}"
            places[f"heads.{_HEAD}.dense.{number}.{name}"] = Place(path, shape, is_weight, 0, 0, size)
    return Layout(places, of_encoder.added)


def _encoder(checkpoint: Checkpoint) -> Checkpoint:
    """Return the model without the head, as the dialect ``huggingface`` writes it.

    Raises:
        PortingError: this dialect cannot express the model.
    """
    heads = checkpoint.config.heads_on_top
    if _HEAD not in heads or checkpoint.text is None:
        missing = "text settings" if _HEAD in heads else f"head {_HEAD}"
        remedy = checkpoint.left_out.get(HEAD_IN_WORDS, "port the model from a folder of sentence-transformers")
        raise PortingError(f"the dialect {NAME} cannot express a model without the {missing}; {remedy}")
    return with_heads(checkpoint, [head for head in heads if head != _HEAD])


def _dense_tensors(folder: Path, size_read: int, size: int, *, bias: bool) -> Mapping[str, Array]:
    """Return the tensors of a dense layer, in the layout of the file.

    Raises:
        PortingError: a tensor is missing or unexpected, or has another shape or dtype.
    """
    source = Source(folder)
    tensors, names = source.tensors, _names(bias=bias)
    shapes = {_WEIGHT: (size, size_read), _BIAS: (size,)}
    problems = [f"missing {name}" for name in names if name not in tensors]
    problems += [f"unexpected {name}" for name in tensors if name not in names]
    for name in names:
        if name in tensors and (tensors[name].shape != shapes[name] or tensors[name].dtype not in FLOATS.values()):
            facts = f"{tensors[name].dtype} {tensors[name].shape}"
            problems.append(f"{name} is {facts}, expected {' or '.join(FLOATS)} {shapes[name]}")
    if problems:
        raise PortingError(f"{source.weights}: {'; '.join(problems)}; restore the file, or correct {CONFIG_FILE}")
    return tensors


def _names(*, bias: bool) -> tuple[str, ...]:
    return (_WEIGHT, _BIAS) if bias else (_WEIGHT,)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


DIALECT = Dialect(
    NAME,
    f"a folder with {MODULES_FILE}",
    sign,
    read,
    write,
    check_target=containers.check_folder,
    layout=layout,
    remark=remark,
)
