"""Dialect ``huggingface``: encoders as the transformers library stores them.

A model is a folder with ``config.json`` and its weights, or a bare file of weights. Linear weights are (out, in).
``huggingface_families.py`` has the names, and ``huggingface_config.py`` translates the configuration. The other
libraries with the same families use the functions of this file too (``library.py``).
"""

import json
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from triglot.shared import files
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.checkpoint.checksums import DeferredTensors
from triglot.shared.errors import PortingError, TriglotError
from triglot.shared.model.config import ModelConfig
from triglot.shared.model.recipes import ConfigOverride, configured
from triglot.shared.model.schema import MASKED_LM_TABLE
from triglot.shared.porting import containers
from triglot.shared.porting.containers import shards
from triglot.shared.porting.heads import WHY
from triglot.shared.porting.source import CONFIG_FILE, Source

from .dialect import Dialect, Layout
from .huggingface_config import (
    architectures_of,
    check_activation,
    check_names,
    completed,
    family_of,
    family_of_bare_weights,
    from_json,
    heads_of,
    of_bare_weights,
    to_json,
)
from .huggingface_families import FAMILIES, Family, family_for, is_of_body
from .library import Library
from .sizes import from_shapes
from .table import NativeTensors, Place, check_layers
from .tokenizer_files import remark, tokenizer_files, write_tokenizer

_UNKNOWN = "it is outside of the encoder, and Triglot does not know the head that may need it"
_BUFFERS = ("embeddings.position_ids",)  # the numbers 0, 1, 2, ...
# The fields for the loss of a task model and for the dropouts of its head.
_TASK_FIELDS = ("problem_type", "classifier_dropout", "seq_classif_dropout", "summary_last_dropout")


def sign(library: Library, source: Source) -> str:
    """Return the name of the table of tokens or of the first query weight, if the source has it."""
    if source.is_neutral or source.has_modules:  # a folder of sentence-transformers, of which the encoder is a part
        return ""
    if library.others and any(library.others in name for name in source.tensors):
        return ""
    return next((name for name in source.tensors if library.plain_name(name) in library.signs), "")


def read(library: Library, source: Source, config: ConfigOverride = None) -> Checkpoint:
    """Read the model ``source`` as a checkpoint; ``config`` completes or corrects its configuration.

    Raises:
        PortingError: a file is unreadable, holds anything that cannot be translated without loss, or is bare weights
            and ``config`` does not say what they do not.
    """
    source = source.with_weights(library.weights_file)
    is_bare = source.fields is None
    tensors, names_in_file, left_out = _plain_tensors(library, source)
    try:
        configuration = _of_bare_weights if is_bare else _of_folder
        family, final = configuration(library, source, tensors, names_in_file, config)
        check_activation(family, final)
        table = family.table(final.heads_on_top)
        alias_names, duplicates = _remove_duplicates(family, final, tensors, names_in_file)
        check_layers(final, tensors)
        left_out |= duplicates | _leave_out_unused_pooler(family, final, tensors, names_in_file)
        left_out |= _leave_out_heads(source, family, {*table.names(final).values()}, tensors, names_in_file)
        left_out |= _fields_of_task(source)
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
        problem = str(error).replace(CONFIG_FILE, source.config_file)
        raise PortingError(f"cannot port {source.path}: {problem}") from error
    source_names = alias_names | {name: names_in_file[native] for name, native in table.names(final).items()}
    canonical, transforms = table.to_canonical(final, tensors), table.transforms(final)
    tokenizer = {} if is_bare else tokenizer_files(source.path, source.path)
    return Checkpoint(final, canonical, source_names, left_out=left_out, transforms=transforms, tokenizer=tokenizer)


def _of_folder(
    library: Library,
    source: Source,
    tensors: Mapping[str, Array],
    names_in_file: Mapping[str, str],
    override: ConfigOverride,
) -> tuple[Family, ModelConfig]:
    """Return the family and the configuration of a folder."""
    given: Mapping[str, Any] = override if isinstance(override, Mapping) else {}
    fields = library.standard(source.fields or {})
    if "model_type" not in fields:  # as in the files of the first BERT
        family = family_of_bare_weights(library, names_in_file.values(), override)
        name = "ernie" if fields.get("use_task_id") and "ernie" in family.model_types else family.name
        fields = {**fields, "model_type": given.get("model_type", name)}
    family = family_of(library, fields)
    check_names(library, family, names_in_file.values())
    fields = completed(family, fields, given)
    override = {name: value for name, value in given.items() if name != "model_type"} if given else override
    heads = heads_of(family, tensors, source.heads, architectures_of(fields))
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    classes = from_shapes(family.table(heads), shapes).get("classes", 0)
    return family, configured(from_json(family, fields, heads, classes).to_dict(), override)


def _of_bare_weights(
    library: Library,
    source: Source,
    tensors: Mapping[str, Array],
    names_in_file: Mapping[str, str],
    override: ConfigOverride,
) -> tuple[Family, ModelConfig]:
    """Return the family and the configuration of a bare file of weights."""
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    family = family_of_bare_weights(library, names_in_file.values(), override)
    if family.decoder in tensors and _is_tied(family, tensors):
        del shapes[family.decoder]
    if isinstance(override, str | ModelConfig):
        return family, configured({}, override)
    given = {name: value for name, value in (override or {}).items() if name != "model_type"}
    return family, configured(of_bare_weights(family, shapes, heads_of(family, tensors, source.heads), given), given)


def write(library: Library, checkpoint: Checkpoint, target: Path, shard_size: int | None = None) -> None:
    """Write the folder ``target``, which must not exist or must be empty, completely or not at all.

    With a ``shard_size``, the weights are in files that each hold at most that many bytes, with an index.

    Raises:
        PortingError: this dialect cannot express the model.
        OutputError: the target cannot be written.
    """
    with files.writing_folder(target) as folder:
        write_files(library, checkpoint, folder, shard_size)
        write_tokenizer(checkpoint, folder)


def write_files(library: Library, checkpoint: Checkpoint, folder: Path, shard_size: int | None = None) -> None:
    """Write the files of a model into an existing folder.

    Raises:
        PortingError: this dialect cannot express the model.
        OSError, ValueError: a file cannot be written.
    """
    json_fields, places, copies = _places(library, checkpoint.config)
    native = NativeTensors(places, checkpoint.tensors)
    names = dict(zip(native, native, strict=True)) | copies
    tensors = DeferredTensors(
        {name: native.unread[original] for name, original in names.items()}, lambda name: native[names[name]]
    )
    (folder / CONFIG_FILE).write_text(json.dumps(json_fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if library.weights_file == shards.WEIGHTS_FILE:
        shards.write(folder, tensors, shard_size)
    else:
        with (folder / library.weights_file).open("wb") as file:
            containers.BY_SUFFIX[Path(library.weights_file).suffix].write(file, tensors)


def layout(library: Library, checkpoint: Checkpoint, target: Path) -> Layout:
    """See ``Dialect.layout``."""
    _, places, copies = _places(library, checkpoint.config)
    return Layout(places, {name: f"a copy of {original}" for name, original in copies.items()})


def _places(library: Library, config: ModelConfig) -> tuple[dict[str, Any], dict[str, Place], dict[str, str]]:
    """Return ``config.json``, the places of the parameters, and the tensors that are copies of others, by name."""
    family, json_fields = to_json(library, config)
    prefix = "" if set(config.heads_on_top) <= {"pooler"} else family.prefix_of(json_fields["model_type"])
    places = {
        canonical: place._replace(name=prefix + place.name) if is_of_body(place.name) else place
        for canonical, place in family.table(config.heads_on_top).places(config).items()
    }
    names = {place.name for place in places.values()}
    copies: dict[str, str] = {}
    if family.repeats and family.bias in names and family.decoder not in names:
        copies[family.decoder] = prefix + family.token_table
    if family.duplicate_bias and family.decoder in names | copies.keys():
        copies[family.duplicate_bias] = family.bias  # of an untied decoder, transformers stores both
    return json_fields, places, copies


def _remove_duplicates(
    family: Family, config: ModelConfig, tensors: dict[str, Array], names_in_file: dict[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Keep one name of each tensor that files store twice.

    Return the file's names of removed aliases, by alias, and the names of all removed tensors, with the reasons.

    A tied decoder and its bias may be present or not. An untied decoder computes with its own bias; the other one,
    which transformers stores beside it, affects no result.
    """
    if "masked_lm" not in config.heads_on_top:
        return {}, {}
    left_out: dict[str, str] = {}
    if family.duplicate_bias and family.duplicate_bias in tensors:
        if family.bias in tensors:
            left_out[names_in_file[family.bias]] = "it affects no result"
        if (config.tied_embeddings or family.repeats) and family.bias in tensors:
            _check_equal(family.bias, family.duplicate_bias, tensors)
            left_out[names_in_file[family.bias]] = f"it equals {names_in_file[family.duplicate_bias]}"
        tensors[family.bias] = tensors.pop(family.duplicate_bias)
        names_in_file[family.bias] = names_in_file[family.duplicate_bias]
    if not config.tied_embeddings or family.decoder not in tensors:
        return {}, left_out
    _check_equal(family.token_table, family.decoder, tensors)
    del tensors[family.decoder]
    decoder = names_in_file[family.decoder]
    return {MASKED_LM_TABLE: decoder}, {**left_out, decoder: "it equals the table of tokens, to which it is tied"}


def _is_tied(family: Family, tensors: Mapping[str, Array]) -> bool:
    return family.token_table in tensors and np.array_equal(tensors[family.token_table], tensors[family.decoder])


def _check_equal(name: str, duplicate: str, tensors: Mapping[str, Array]) -> None:
    if name in tensors and not np.array_equal(tensors[name], tensors[duplicate]):
        raise PortingError(
            f"{duplicate} differs from {name}, but the configuration ties them; set tie_word_embeddings in "
            f"{CONFIG_FILE} (tied_embeddings in a configuration of Triglot) to false, or remove {duplicate}"
        )


def _leave_out_unused_pooler(
    family: Family, config: ModelConfig, tensors: dict[str, Array], names_in_file: Mapping[str, str]
) -> dict[str, str]:
    """Remove the pooler of the body if the classifier has its own. Return its names in the file and the reason.

    Old versions of transformers stored both.
    """
    if not family.pooler_of_classifier or "sequence_classifier" not in config.heads_on_top:
        return {}
    body = family.modules["heads.pooler"]
    unused = [name for name in (f"{body}.weight", f"{body}.bias") if name in tensors]
    for name in unused:
        del tensors[name]
    return {names_in_file[name]: "the classifier has a pooler of its own" for name in unused}


def _fields_of_task(source: Source) -> dict[str, str]:
    """Return the fields of a task model that a checkpoint does not hold, and what to do about them."""
    fields = source.fields or {}
    names = fields.get("id2label")
    pairs = cast("dict[Any, Any]", names).items() if isinstance(names, dict) else ()
    found = [name for name in _TASK_FIELDS if fields.get(name) is not None]
    if any(name != f"LABEL_{number}" for number, name in pairs):
        found.append("id2label")
    return dict.fromkeys(found, "a checkpoint does not hold it; copy it into the new config.json")


def _leave_out_heads(
    source: Source,
    family: Family,
    expected: Collection[str],
    tensors: dict[str, Array],
    names_in_file: Mapping[str, str],
) -> dict[str, str]:
    """Remove the tensors of heads that the user does not keep; return their names in the file, and why."""
    if source.heads is None:
        return {}
    dropped = [
        name for name in tensors if name not in expected and (not is_of_body(name) or name.startswith("pooler."))
    ]
    for name in dropped:
        del tensors[name]
    of_heads = tuple(f"{module}." for path, module in family.modules.items() if path.startswith("heads."))
    return {names_in_file[name]: WHY if name.startswith(of_heads) else _UNKNOWN for name in dropped}


def _hint(family: Family, config: ModelConfig, name: str) -> str:
    """Return how to accept an unexpected tensor, if it belongs to a head that the configuration does not have."""
    for head in [head for head in family.shown_by if head not in config.heads_on_top]:
        paths = [path for path in family.modules if path.split(".")[:2] == ["heads", head]]
        if any(name.startswith(f"{family.modules[path]}.") for path in paths):
            return f" (add {head} to heads_on_top)"
    return ""


def _plain_tensors(library: Library, source: Source) -> tuple[dict[str, Array], dict[str, str], dict[str, str]]:
    """Return the tensors by plain name, the name in the file of each plain name, and the buffers that are left out."""
    tensors: dict[str, Array] = {}
    names_in_file: dict[str, str] = {}
    buffers: dict[str, str] = {}
    for name, tensor in source.tensors.items():
        plain = library.plain_name(name)
        if plain in _BUFFERS:
            if not np.array_equal(tensor.ravel(), np.arange(tensor.size)):
                raise PortingError(
                    f"cannot read {source.weights}: {name} holds other numbers than 0, 1, 2 and so on, so the model "
                    "counts positions in a way that Triglot does not support; remove it if it is damaged"
                )
            buffers[name] = "it is a buffer without information"
            continue
        if plain in tensors:
            raise PortingError(
                f"cannot read {source.weights}: {plain} occurs twice, as {names_in_file[plain]} and {name}; keep one "
                "of them"
            )
        tensors[plain], names_in_file[plain] = tensor, name
    return tensors, names_in_file, buffers


def dialect_of(library: Library, expected: str) -> Dialect:
    """Return the dialect of a library; ``expected`` describes its files."""
    return Dialect(
        library.dialect,
        expected,
        partial(sign, library),
        partial(read, library),
        partial(write, library),
        check_target=containers.check_folder,
        layout=partial(layout, library),
        remark=remark,
        write_shards=partial(write, library) if library.weights_file == shards.WEIGHTS_FILE else None,
    )


LIBRARY = Library(
    "huggingface",
    FAMILIES,
    family_for,
    shards.WEIGHTS_FILE,
    old_names={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    others=".self_attn.",
)
DIALECT = dialect_of(
    LIBRARY,
    f"a folder with {CONFIG_FILE} and {LIBRARY.weights_file} or pytorch_model.bin (also sharded), or bare weights",
)
