"""Dialect ``huggingface``: BERT and ERNIE as the transformers library stores them.

A model is a folder with ``config.json`` and ``model.safetensors``. The table of modules is a bijection for any one
configuration. Linear weights are (out, in) there and transposed here; which weights are linear is known from the
schema, never guessed from a shape.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError, safe_open

from .. import schema
from ..arrays import Array
from ..checkpoint import Checkpoint
from ..config import Activation, ModelConfig
from ..errors import PortingError, TriglotError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"

_MODULES = {
    "embeddings.token": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.segment": "embeddings.token_type_embeddings",
    "embeddings.task": "embeddings.task_type_embeddings",
    "embeddings.process.norm": "embeddings.LayerNorm",
    "heads.pooler": "pooler.dense",
}
_LAYER_MODULES = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "post_attention.norm": "attention.output.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.output": "output.dense",
    "post_feed_forward.norm": "output.LayerNorm",
}
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_MODEL_TYPES = ("bert", "ernie")
_BUFFERS = ("embeddings.position_ids",)  # the numbers 0, 1, 2, ...


def recognises(folder: Path) -> bool:
    """Whether ``folder`` holds the two files of this dialect."""
    return (folder / CONFIG_FILE).is_file() and (folder / WEIGHTS_FILE).is_file()


def read(folder: Path) -> Checkpoint:
    """The model in ``folder`` as a neutral checkpoint.

    Raises:
        PortingError: a file is unreadable, or holds something that cannot be translated without loss.
    """
    fields = _read_config(folder / CONFIG_FILE)
    tensors, original = _read_tensors(folder / WEIGHTS_FILE, str(fields.get("model_type")))
    try:
        config = configuration(fields, tensors)
        if config.layers > len(tensors):
            raise PortingError(f"{CONFIG_FILE}: num_hidden_layers is {config.layers}; there are {len(tensors)} tensors")
    except TriglotError as error:
        raise PortingError(f"cannot port {folder}: {error}") from error
    native = names(config)
    problems = [f"missing {name}" for name in native.values() if name not in tensors]
    problems += [f"no place for {original[name]}" for name in tensors if name not in native.values()]
    if problems:
        raise PortingError(
            f"cannot port {folder}: {'; '.join(problems)}; expected the encoder of a BERT or ERNIE and its pooler, "
            "no more; save the model without other heads"
        )
    parameters = schema.parameters(config)
    for name, source in native.items():
        shape = parameters[name].shape
        shape = shape[::-1] if parameters[name].role == "linear_weight" else shape
        if tensors[source].shape != shape:
            raise PortingError(
                f"cannot port {folder}: {original[source]} has shape {tensors[source].shape}, expected {shape}; "
                f"{CONFIG_FILE} belongs to another model"
            )
    return Checkpoint(
        config,
        {
            name: np.ascontiguousarray(tensors[source].T)
            if parameters[name].role == "linear_weight"
            else tensors[source]
            for name, source in native.items()
        },
        {name: original[source] for name, source in native.items()},
    )


def names(config: ModelConfig) -> dict[str, str]:
    """Canonical name -> name in this dialect, for every parameter of ``config``.

    Raises:
        PortingError: the configuration has a parameter that this dialect cannot name.
    """
    table: dict[str, str] = {}
    for name, parameter in schema.parameters(config).items():
        path, leaf = name.rsplit(".", 1)
        prefix, modules = "", _MODULES
        if path.startswith("encoder.layers."):
            _, _, layer, path = path.split(".", 3)
            prefix, modules = f"encoder.layer.{layer}.", _LAYER_MODULES
        if path not in modules:
            raise PortingError(
                f"the dialect huggingface has no name for {name}; it stores post-norm BERT and ERNIE alone"
            )
        native_leaf = "weight" if parameter.role == "scale" else leaf
        table[name] = f"{prefix}{modules[path]}.{native_leaf}"
    return table


def configuration(fields: Mapping[str, Any], tensor_names: Iterable[str]) -> ModelConfig:
    """The configuration that ``config.json`` describes; ``tensor_names`` say whether there is a pooler.

    Raises:
        PortingError: a field is missing or has a value that Triglot does not implement.
    """
    model_type = _field(fields, "model_type")
    if model_type not in _MODEL_TYPES:
        raise _refuse("model_type", model_type, f"one of {', '.join(_MODEL_TYPES)}")
    activation = _field(fields, "hidden_act")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise _refuse("hidden_act", activation, f"one of {', '.join(_ACTIVATIONS)}")
    for name, only in (
        ("position_embedding_type", "absolute"),
        ("is_decoder", False),
        ("add_cross_attention", False),
    ):
        if fields.get(name, only) != only:
            raise _refuse(name, fields[name], repr(only))
    hidden_size, heads = _size(fields, "hidden_size"), _size(fields, "num_attention_heads")
    if heads < 1 or hidden_size % heads:
        raise _refuse("num_attention_heads", heads, f"a divisor of hidden_size {hidden_size}")
    has_tasks = fields.get("use_task_id", False)
    if not isinstance(has_tasks, bool) or (has_tasks and model_type != "ernie"):
        raise _refuse("use_task_id", has_tasks, "true for an ERNIE with tasks, or false")
    return ModelConfig(
        hidden_size=hidden_size,
        layers=_size(fields, "num_hidden_layers"),
        heads=heads,
        key_size=hidden_size // heads,
        value_size=hidden_size // heads,
        feed_forward_size=_size(fields, "intermediate_size"),
        source_vocabulary=_size(fields, "vocab_size"),
        source_max_length=_size(fields, "max_position_embeddings"),
        segments=_size(fields, "type_vocab_size"),
        tasks=_size(fields, "task_type_vocab_size") if has_tasks else 0,
        positions="learned",
        pad_id=fields.get("pad_token_id"),
        embedding_process="nd",
        pre_process="",
        post_process="dan",
        final_process="",
        norm_eps=_field(fields, "layer_norm_eps"),
        activation=_ACTIVATIONS[activation],
        masking="exclude",
        embedding_dropout=_field(fields, "hidden_dropout_prob"),
        residual_dropout=_field(fields, "hidden_dropout_prob"),
        attention_dropout=_field(fields, "attention_probs_dropout_prob"),
        heads_on_top=("pooler",) if "pooler.dense.weight" in tensor_names else (),
    )


def _read_config(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PortingError(f"cannot read {path}: {error}; restore the file") from error
    if not isinstance(fields, dict):
        raise PortingError(f"cannot read {path}: it holds no JSON object; restore the file")
    return cast("dict[str, Any]", fields)


def _read_tensors(path: Path, model_type: str) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors under plain names, and what each plain name was in the file."""
    tensors: dict[str, Array] = {}
    original: dict[str, str] = {}
    try:
        with cast("Any", safe_open(path, framework="numpy")) as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                plain = _plain(name, model_type)
                if plain in _BUFFERS:
                    continue
                dtype = file.get_slice(name).get_dtype()
                if dtype not in ("F32", "F64"):
                    raise PortingError(
                        f"cannot read {path}: {name} is {dtype}; expected F32 or F64, save the model as float32"
                    )
                if plain in tensors:
                    raise PortingError(
                        f"cannot read {path}: {plain} occurs twice, as {original[plain]} and {name}; keep one of them"
                    )
                tensors[plain], original[plain] = file.get_tensor(name), name
    except (OSError, SafetensorError) as error:
        raise PortingError(f"cannot read {path}: {error}; restore the file") from error
    return tensors, original


def _plain(name: str, model_type: str) -> str:
    """Without the prefix that task models put before the body, and in today's words for the norm's parameters."""
    plain = name.removeprefix(f"{model_type}.")
    return plain.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise PortingError(f"{CONFIG_FILE}: {name} is missing; add it, as the model was trained")
    return fields[name]


def _size(fields: Mapping[str, Any], name: str) -> int:
    value = _field(fields, name)
    if not isinstance(value, int):
        raise _refuse(name, value, "a whole number")
    return value


def _refuse(name: str, got: object, expected: str) -> PortingError:
    return PortingError(f"{CONFIG_FILE}: {name} is {got!r}; expected {expected}, other models are not supported")
