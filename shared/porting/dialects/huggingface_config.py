"""The configuration of the dialect ``huggingface``: ``config.json`` to ``ModelConfig`` and back."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from triglot.shared.errors import ConfigError, PortingError
from triglot.shared.model.config import Activation, Head, ModelConfig
from triglot.shared.porting.source import CONFIG_FILE

from .dialect import inexpressible, unanswered
from .sizes import from_shapes as sizes_from_shapes
from .sizes import of_one_head, tensor_that_shows
from .table import Table

# Field of ModelConfig -> field of config.json. ``from_json`` and ``to_json`` both read these tables.
_SIZES = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "feed_forward_size": "intermediate_size",
    "source_vocabulary": "vocab_size",
    "source_max_length": "max_position_embeddings",
    "segments": "type_vocab_size",
}
_NUMBERS = {
    "norm_eps": "layer_norm_eps",
    "residual_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
# The remaining words of ModelConfig's errors, for users who wrote a config.json.
_JSON_WORDS = {
    **_SIZES,
    **_NUMBERS,
    "configuration": CONFIG_FILE,
    "pad_id": "pad_token_id",
    "embedding_dropout": "hidden_dropout_prob",
}
# The fields that every model of this dialect has in common.
_FAMILY = {
    "positions": "learned",
    "embedding_process": "nd",
    "pre_process": "",
    "post_process": "dan",
    "final_process": "",
}
_MODEL_TYPES = {"bert": "Bert", "ernie": "Ernie"}
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
# Each head and the tensor that shows its presence.
_HEADS: dict[Head, str] = {
    "pooler": "pooler.dense.weight",
    "masked_lm": "cls.predictions.transform.dense.weight",
    "next_sentence": "cls.seq_relationship.weight",
}
# The class of transformers that has exactly these heads.
_CLASSES: dict[tuple[Head, ...], str] = {
    ("masked_lm",): "ForMaskedLM",
    ("pooler", "masked_lm"): "ForPreTraining",
    ("pooler", "next_sentence"): "ForNextSentencePrediction",
    ("pooler", "masked_lm", "next_sentence"): "ForPreTraining",
}
# The fields that a bare state dict does not say.
_NOT_IN_WEIGHTS = ("heads", "activation", "norm_eps", "masking")
# The sizes that each BERT has.
_SHOWN_SIZES = ("source_vocabulary", "source_max_length", "segments", "hidden_size", "feed_forward_size")

_UNSUPPORTED = "Triglot does not support other models"
_CORRECT = "use the value that the model was trained with"


def from_json(fields: Mapping[str, Any], tensor_names: Collection[str]) -> ModelConfig:
    """Return the configuration that ``config.json`` describes; ``tensor_names`` say which heads the model has.

    Raises:
        PortingError: a field is missing, impossible, or not supported.
    """
    model_type = _choice(fields, "model_type", _MODEL_TYPES)
    activation = _choice(fields, "hidden_act", _ACTIVATIONS)
    for name, only in (("position_embedding_type", "absolute"), ("is_decoder", False), ("add_cross_attention", False)):
        if fields.get(name, only) != only:
            raise _refused(name, fields[name], repr(only), _UNSUPPORTED)
    sizes = {name: _size(fields, json_name) for name, json_name in _SIZES.items()}
    numbers = {name: _field(fields, json_name) for name, json_name in _NUMBERS.items()}
    hidden_size, heads = sizes["hidden_size"], sizes["heads"]
    if hidden_size % heads:
        raise _refused("num_attention_heads", heads, f"a divisor of hidden_size {hidden_size}")
    has_tasks = _flag(fields, "use_task_id", default=False)
    if has_tasks and model_type != "ernie":
        raise _refused("use_task_id", has_tasks, "true for an ERNIE with tasks, or false")
    heads_on_top = _heads_on_top(tensor_names)
    tied = _flag(fields, "tie_word_embeddings", default=True)
    config_fields = {
        **_FAMILY,
        **sizes,
        **numbers,
        "embedding_dropout": numbers["residual_dropout"],
        "key_size": hidden_size // heads,
        "value_size": hidden_size // heads,
        "tasks": _size(fields, "task_type_vocab_size") if has_tasks else 0,
        "pad_id": fields.get("pad_token_id"),
        "activation": _ACTIVATIONS[activation],
        "masking": "exclude",
        "heads_on_top": heads_on_top,
        "tied_embeddings": tied and "masked_lm" in heads_on_top,
    }
    try:
        return ModelConfig.from_dict(config_fields)
    except ConfigError as error:
        problem = re.sub(r"\w+", lambda match: _JSON_WORDS.get(match[0], match[0]), str(error))
        raise PortingError(f"{problem}; {_CORRECT}") from error


def to_json(config: ModelConfig) -> dict[str, Any]:
    """Return the content of ``config.json`` for ``config``. This is the inverse of ``from_json``.

    Raises:
        PortingError: this dialect cannot express the configuration.
    """
    # Refuse what ``from_json`` could not even read back.
    if config.kind != "encoder":
        raise inexpressible("huggingface", [f"kind {config.kind!r} (only 'encoder')"])
    losses = [f"{name} 0 (only 1 or more)" for name in ("source_vocabulary", "segments") if not getattr(config, name)]
    if config.hidden_size % config.heads:
        losses.append(f"heads {config.heads} (only divisors of hidden_size {config.hidden_size})")
    if losses:
        raise inexpressible("huggingface", losses)
    model_type = "ernie" if config.tasks else "bert"
    fields: dict[str, Any] = {
        "architectures": [_MODEL_TYPES[model_type] + _CLASSES.get(config.heads_on_top, "Model")],
        "model_type": model_type,
        "pad_token_id": config.pad_id,
        "hidden_act": next(name for name, activation in _ACTIVATIONS.items() if activation == config.activation),
        "tie_word_embeddings": config.tied_embeddings or "masked_lm" not in config.heads_on_top,
        **{json_name: getattr(config, name) for name, json_name in {**_SIZES, **_NUMBERS}.items()},
    }
    if config.tasks:
        fields |= {"use_task_id": True, "task_type_vocab_size": config.tasks}
    # Read the fields back to find what they cannot express.
    wanted, expressed = config.to_dict(), from_json(fields, [_HEADS[head] for head in config.heads_on_top]).to_dict()
    losses = [
        f"{name} {wanted[name]!r} (only {expressed[name]!r})" for name in wanted if wanted[name] != expressed[name]
    ]
    if losses:
        raise inexpressible("huggingface", losses)
    return fields


def from_shapes(
    table: Table, shapes: Mapping[str, tuple[int, ...]], config_fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields that the names and shapes of a bare state dict show; ``config_fields`` are those of the user.

    Raises:
        PortingError: a tensor of BERT is missing, or the user did not give a field that the weights do not show.
    """
    if missing := [name for name in _NOT_IN_WEIGHTS if name not in config_fields]:
        raise unanswered(missing)
    sizes = sizes_from_shapes(table, shapes)
    for field in _SHOWN_SIZES:
        if field not in sizes:
            name = tensor_that_shows(table, field)
            raise PortingError(f"{name} is missing; expected the weights of a BERT or ERNIE; {_UNSUPPORTED}")
    heads_on_top = _heads_on_top(shapes)
    return {
        **_FAMILY,
        **of_one_head(sizes, config_fields["heads"]),
        "heads_on_top": heads_on_top,
        "tied_embeddings": "masked_lm" in heads_on_top and "cls.predictions.decoder.weight" not in shapes,
    }


def _heads_on_top(tensor_names: Collection[str]) -> list[Head]:
    heads: list[Head] = [head for head, name in _HEADS.items() if name in tensor_names]
    if "next_sentence" in heads and "pooler" not in heads:
        raise PortingError(
            f"missing {_HEADS['pooler']}, whose output {_HEADS['next_sentence']} reads; save the whole model"
        )
    return heads


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise PortingError(f"{CONFIG_FILE}: {name} is missing; add the value that the model was trained with")
    return fields[name]


def _choice(fields: Mapping[str, Any], name: str, choices: Collection[str]) -> str:
    value = _field(fields, name)
    if not isinstance(value, str) or value not in choices:
        raise _refused(name, value, f"one of {', '.join(choices)}", _UNSUPPORTED)
    return value


def _size(fields: Mapping[str, Any], name: str) -> int:
    value = _field(fields, name)
    if type(value) is not int or value < 1:
        raise _refused(name, value, "a whole number of at least 1")
    return value


def _flag(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise _refused(name, value, "true or false")
    return value


def _refused(name: str, value: object, expected: str, remedy: str = _CORRECT) -> PortingError:
    return PortingError(f"{CONFIG_FILE}: {name} is {value!r}; expected {expected}; {remedy}")
