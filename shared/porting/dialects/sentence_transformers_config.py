"""The JSON files of the dialect ``sentence-transformers``: modules, pooling, dense layers, and how text is read.

The names are those of sentence-transformers 6.2, and those of its releases since 1.0 that it still reads. A class in a
file is compared with known names. Nothing is ever imported because a file says so.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from triglot.shared.checkpoint import TextSettings
from triglot.shared.errors import CheckpointError, PortingError
from triglot.shared.model.config import DenseActivation, DenseLayer, SentencePooling
from triglot.shared.porting.json_file import read_list, read_object, stays_inside
from triglot.shared.porting.source import CONFIG_FILE, MODULES_FILE

from .dialect import inexpressible
from .tokenizer_files import is_link_out_of

NAME = "sentence-transformers"
SETTINGS_FILE = "config_sentence_transformers.json"
LENGTH_FILE = "sentence_bert_config.json"
# The same file in older folders.
_LENGTH_FILES = (LENGTH_FILE, *(f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "xlm-roberta")))
_TOKENIZER_CONFIG_FILE = "tokenizer_config.json"

_SUPPORTED = "Transformer, Pooling, any number of Dense, and at most one Normalize, in this order"
# The library has moved its modules: models.Pooling, or base.modules.normalize.Normalize.
_CLASS = re.compile(
    r"sentence_transformers\.(models|base\.modules|sentence_transformer\.modules)\.(\w+\.)?"
    r"(Transformer|Pooling|Dense|Normalize)"
)
_POOLINGS: dict[str, SentencePooling] = {"mean": "mean", "cls": "cls", "max": "max"}
# Older names of the poolings, in the order in which the library concatenates several of them.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# The library loads a class without arguments, so a GELU is the exact one.
_ACTIVATIONS: dict[DenseActivation, str] = {
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "none": "torch.nn.modules.linear.Identity",
}
_EMBEDDING, _TOKENS = "sentence_embedding", "token_embeddings"  # between modules of the library
_TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}


@dataclass(frozen=True)
class Modules:
    """The folders of the modules, relative to that of the model."""

    encoder: Path
    pooling: Path
    dense: tuple[Path, ...]
    normalize: Path | None


def read_modules(folder: Path) -> Modules:
    """Return the modules of a folder.

    Raises:
        PortingError: ``modules.json`` is damaged, or has modules that are not supported.
    """
    kinds: list[str] = []
    paths: list[Path] = []
    for number, entry in enumerate(read_list(folder / MODULES_FILE)):
        fields = cast("dict[str, Any]", entry if isinstance(entry, dict) else {})
        class_name, path = fields.get("type"), fields.get("path")
        match = _CLASS.fullmatch(class_name) if isinstance(class_name, str) else None
        if match is None:
            raise _refused(MODULES_FILE, f"the type of module {number}", class_name, _SUPPORTED)
        if not isinstance(path, str) or not stays_inside(path) or is_link_out_of(folder, folder / path):
            raise _refused(MODULES_FILE, f"the path of module {number}", path, "a folder inside the model's")
        _only(MODULES_FILE, fields, {"kwargs": ([], {}, None)})
        kinds.append(match[3])
        paths.append(Path(path))
    if not re.fullmatch("Transformer,Pooling(,Dense)*(,Normalize)?", ",".join(kinds)):
        raise _refused(MODULES_FILE, "the list of modules", ", ".join(kinds), _SUPPORTED)
    has_normalize = kinds[-1] == "Normalize"
    return Modules(
        paths[0], paths[1], tuple(paths[2:-1] if has_normalize else paths[2:]), paths[-1] if has_normalize else None
    )


def read_pooling(folder: Path, size: int) -> SentencePooling:
    """Return how vectors of a ``size`` are pooled.

    Raises:
        PortingError: the file is damaged, or the pooling is not supported.
    """
    file = folder / CONFIG_FILE
    fields = read_object(file)
    mode: object = fields.get("pooling_mode")
    if mode is None:
        mode = [name for flag, name in _FLAGS.items() if fields.get(flag)] or "mean"
    if isinstance(mode, list) and len(modes := cast("list[object]", mode)) == 1:
        mode = modes[0]
    if not isinstance(mode, str) or mode not in _POOLINGS:
        raise _refused(file, "pooling_mode", cast("object", mode), f"one of {', '.join(_POOLINGS)}")
    stated = fields.get("embedding_dimension", fields.get("word_embedding_dimension"))
    if stated != size:
        raise _refused(file, "embedding_dimension", stated, f"{size}, the hidden size of the encoder")
    _only(file, fields, {"include_prompt": (True, None)})  # Triglot pools every real token
    return _POOLINGS[mode]


def read_dense(folder: Path) -> tuple[int, DenseLayer]:
    """Return the size of what a dense layer reads, and the layer.

    Raises:
        PortingError: the file is damaged, or the layer is not supported.
    """
    file = folder / CONFIG_FILE
    fields = read_object(file)
    activations: dict[str, DenseActivation] = {}
    for activation, class_name in _ACTIVATIONS.items():
        activations[class_name] = activations[f"torch.nn.{class_name.rpartition('.')[2]}"] = activation
    activation = fields.get("activation_function", _ACTIVATIONS["tanh"])
    if not isinstance(activation, str) or activation not in activations:
        raise _refused(file, "activation_function", activation, f"one of {', '.join(_ACTIVATIONS.values())}")
    sizes = [fields.get("in_features"), fields.get("out_features")]
    for name, size in zip(("in_features", "out_features"), sizes, strict=True):
        if type(size) is not int or size < 1:
            raise _refused(file, name, size, "a whole number of at least 1")
    bias = fields.get("bias", True)
    if not isinstance(bias, bool):
        raise _refused(file, "bias", bias, "true or false")
    _only(file, fields, {"use_residual": (False, None), **_features(_EMBEDDING)})
    read, written = sizes
    assert read is not None
    assert written is not None
    return read, DenseLayer(size=written, bias=bias, activation=activations[activation])


def check_normalize(folder: Path) -> None:
    """Check that a Normalize module scales the embedding.

    Raises:
        PortingError: the file is damaged, or the module reads something else.
    """
    file = folder / CONFIG_FILE
    _only(file, _optional(file), _features(_EMBEDDING))


def read_text_settings(folder: Path, encoder: Path, source_max_length: int) -> TextSettings:
    """Return how text becomes tokens. ``encoder`` is the folder of the Transformer.

    Texts longer than ``source_max_length`` are an error in the library, so the limit is at most that.

    Raises:
        PortingError: a file is damaged, or a setting is not supported.
    """
    file = next((path for name in _LENGTH_FILES if (path := encoder / name).is_file()), encoder / LENGTH_FILE)
    fields = _optional(file)
    extra = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
    absent = (*extra, "processing_kwargs", "query_length", "document_length", "query_expansion")
    _only(
        file,
        fields,
        {
            "do_lower_case": (False, None),
            "transformer_task": ("feature-extraction", None),
            "modality_config": (_TEXT, None),
            "module_output_name": (_TOKENS, None),
            "tokenizer_name_or_path": (None,),
            **dict.fromkeys(absent, ({}, None)),
        },
    )
    length = fields.get("max_seq_length")
    if length is None:
        file = encoder / _TOKENIZER_CONFIG_FILE
        length = _optional(file).get("model_max_length")
        length = source_max_length if length is None else length
    if isinstance(length, bool) or not isinstance(length, int | float) or not length >= 1 or length % 1:
        raise _refused(file, "the maximum number of tokens", length, "a whole number of at least 1")
    file = folder / SETTINGS_FILE
    settings = _optional(file)
    _only(file, settings, {"model_type": ("SentenceTransformer", None), "truncate_dim": (None,)})
    prompts: dict[str, Any] = {} if (given := settings.get("prompts")) is None else given
    if isinstance(given, dict):
        prompts = {name: "" if prompt is None else prompt for name, prompt in prompts.items()}  # as in the library
    try:
        return TextSettings(
            max_tokens=int(min(length, source_max_length)),
            prompts=prompts,
            default_prompt=settings.get("default_prompt_name"),
            similarity=settings.get("similarity_fn_name"),
        )
    except CheckpointError as error:
        raise PortingError(f"{file}: {error}") from error


def modules_to_json(layers: int, *, normalized: bool) -> list[dict[str, Any]]:
    """Return the content of ``modules.json``, in names that every release since 2.0 can read."""
    kinds = ["Transformer", "Pooling", *["Dense"] * layers, *["Normalize"] * normalized]
    return [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]


def pooling_to_json(size: int, pooling: SentencePooling) -> dict[str, Any]:
    """Return the configuration of a Pooling module, in names of every release."""
    return {"word_embedding_dimension": size, **{flag: mode == pooling for flag, mode in _FLAGS.items()}}


def dense_to_json(size: int, layer: DenseLayer) -> dict[str, Any]:
    """Return the configuration of a Dense module that reads vectors of a ``size``.

    Raises:
        PortingError: the library cannot express the activation.
    """
    if layer.activation not in _ACTIVATIONS:
        names = ", ".join(map(repr, _ACTIVATIONS))
        raise inexpressible(NAME, [f"activation {layer.activation!r} in sentence_layers (only {names})"])
    return {
        "in_features": size,
        "out_features": layer.size,
        "bias": layer.bias,
        "activation_function": _ACTIVATIONS[layer.activation],
    }


def text_to_json(text: TextSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the files with the prompts and with the maximum length."""
    settings = {
        "prompts": dict(text.prompts),
        "default_prompt_name": text.default_prompt,
        "similarity_fn_name": text.similarity,
    }
    return settings, {"max_seq_length": text.max_tokens, "do_lower_case": False}


def _features(name: str) -> dict[str, tuple[object, ...]]:
    return dict.fromkeys(("module_input_name", "module_output_name"), (name, None))


def _optional(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or an empty one if the file does not exist."""
    return read_object(file) if os.path.isfile(file) else {}


def _only(file: Path | str, fields: Mapping[str, Any], accepted: Mapping[str, Sequence[object]]) -> None:
    """Refuse fields that have other values than the ``accepted`` ones. A field may be absent."""
    for name, values in accepted.items():
        if name in fields and fields[name] not in values:
            raise _refused(file, name, fields[name], f"{values[0]!r}, which is all that Triglot supports")


def _refused(file: Path | str, what: str, value: object, expected: str) -> PortingError:
    return PortingError(
        f"{file}: {what} is {value!r:.80}; expected {expected}; to port the encoder alone, name the folder of the "
        "Transformer and the dialect huggingface (source_dialect=, or --source-dialect on the command line)"
    )
