"""The configuration of the dialect ``huggingface``: ``config.json`` to ``ModelConfig`` and back."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from triglot.shared.errors import ConfigError, PortingError
from triglot.shared.model.config import Activation, Head, ModelConfig

CONFIG_FILE = "config.json"

_MODEL_TYPES = {"bert": "Bert", "ernie": "Ernie"}
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
# How each head shows among the names of the tensors.
_HEADS: dict[Head, str] = {
    "pooler": "pooler.dense.weight",
    "masked_lm": "cls.predictions.transform.dense.weight",
    "next_sentence": "cls.seq_relationship.weight",
}
# The class of the library that has these heads.
_CLASSES: dict[tuple[Head, ...], str] = {
    ("masked_lm",): "ForMaskedLM",
    ("pooler", "masked_lm"): "ForPreTraining",
    ("pooler", "next_sentence"): "ForNextSentencePrediction",
    ("pooler", "masked_lm", "next_sentence"): "ForPreTraining",
}
# What every model of this dialect is, in our words.
_FAMILY = {
    "positions": "learned",
    "embedding_process": "nd",
    "pre_process": "",
    "post_process": "dan",
    "final_process": "",
}
# Their words for what ``ModelConfig`` refuses.
_THEIR_WORDS = {
    "configuration": CONFIG_FILE,
    "pad_id": "pad_token_id",
    "source_vocabulary": "vocab_size",
    "norm_eps": "layer_norm_eps",
    "embedding_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
# What a bare state dict cannot say.
_UNSAID = ("heads", "activation", "norm_eps", "masking")


def translated(fields: Mapping[str, Any], tensor_names: Collection[str]) -> ModelConfig:
    """The configuration that ``config.json`` describes; ``tensor_names`` say which heads there are.

    Raises:
        PortingError: a field is missing, or has a value that is impossible or that Triglot does not implement.
    """
    model_type = _field(fields, "model_type")
    if not isinstance(model_type, str) or model_type not in _MODEL_TYPES:
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
    if hidden_size % heads:
        raise _refuse("num_attention_heads", heads, f"a divisor of hidden_size {hidden_size}")
    has_tasks = _flag(fields, "use_task_id", default=False)
    if has_tasks and model_type != "ernie":
        raise _refuse("use_task_id", has_tasks, "true for an ERNIE with tasks, or false")
    heads_on_top = _heads(tensor_names)
    tied = _flag(fields, "tie_word_embeddings", default=True)
    pad_id = fields.get("pad_token_id")
    ours = {
        **_FAMILY,
        "hidden_size": hidden_size,
        "layers": _size(fields, "num_hidden_layers"),
        "heads": heads,
        "key_size": hidden_size // heads,
        "value_size": hidden_size // heads,
        "feed_forward_size": _size(fields, "intermediate_size"),
        "source_vocabulary": _size(fields, "vocab_size"),
        "source_max_length": _size(fields, "max_position_embeddings"),
        "segments": _size(fields, "type_vocab_size"),
        "tasks": _size(fields, "task_type_vocab_size") if has_tasks else 0,
        "pad_id": None if pad_id is None else _number(fields, "pad_token_id", int),
        "norm_eps": _number(fields, "layer_norm_eps", float),
        "activation": _ACTIVATIONS[activation],
        "masking": "exclude",
        "embedding_dropout": _number(fields, "hidden_dropout_prob", float),
        "residual_dropout": _number(fields, "hidden_dropout_prob", float),
        "attention_dropout": _number(fields, "attention_probs_dropout_prob", float),
        "heads_on_top": heads_on_top,
        "tied_embeddings": tied and "masked_lm" in heads_on_top,
    }
    try:
        return ModelConfig.from_dict(ours)
    except ConfigError as error:
        # Who has written their names should not have to know ours.
        words = re.sub(r"\w+", lambda match: _THEIR_WORDS.get(match[0], match[0]), str(error))
        raise PortingError(f"{words}; correct it, as the model was trained") from error


def described(config: ModelConfig) -> dict[str, Any]:
    """The content of ``config.json`` for ``config``, the inverse of ``translated``.

    Raises:
        PortingError: the configuration is none that this dialect can express.
    """
    _check_expressible(config)
    model_type = "ernie" if config.tasks else "bert"
    fields: dict[str, Any] = {
        "architectures": [_MODEL_TYPES[model_type] + _CLASSES.get(config.heads_on_top, "Model")],
        "model_type": model_type,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.feed_forward_size,
        "vocab_size": config.source_vocabulary,
        "max_position_embeddings": config.source_max_length,
        "type_vocab_size": config.segments,
        "pad_token_id": config.pad_id,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation),
        "hidden_dropout_prob": config.residual_dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "tie_word_embeddings": config.tied_embeddings or "masked_lm" not in config.heads_on_top,
    }
    if config.tasks:
        fields |= {"use_task_id": True, "task_type_vocab_size": config.tasks}
    # What the fields do not say, they lose: so read them back.
    ours, theirs = config.to_dict(), translated(fields, [_HEADS[head] for head in config.heads_on_top]).to_dict()
    lost = [f"{name} {ours[name]!r} (only {theirs[name]!r})" for name in ours if ours[name] != theirs[name]]
    if lost:
        raise _inexpressible(lost)
    return fields


def _check_expressible(config: ModelConfig) -> None:
    """Refuse what could not even be read back."""
    if config.kind != "encoder":
        raise _inexpressible([f"kind {config.kind!r} (only 'encoder')"])
    lost = [f"{name} 0 (only 1 or more)" for name in ("source_vocabulary", "segments") if not getattr(config, name)]
    if config.hidden_size % config.heads:
        lost.append(f"heads {config.heads} (only divisors of hidden_size {config.hidden_size})")
    if lost:
        raise _inexpressible(lost)


def _inexpressible(lost: list[str]) -> PortingError:
    return PortingError(
        f"the dialect huggingface cannot express {', '.join(lost)}; correct the configuration if the model allows it "
        "(config=, or --set on the command line)"
    )


def from_names(shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, Any]) -> dict[str, Any]:
    """What the names and shapes of a bare state dict say of its configuration; ``given`` are the fields that it cannot.

    Raises:
        PortingError: a table of a BERT is missing, or what the weights cannot say is not ``given`` either.
    """
    missing = [name for name in _UNSAID if name not in given]
    if missing:
        raise PortingError(
            f"a bare state dict does not say {', '.join(missing)}; give them as config (--set {missing[0]}=... on the "
            "command line), or a recipe; for the state dict of an article, name its dialect (--source-dialect)"
        )

    def size(name: str, axis: int) -> int:
        if len(shapes.get(name, ())) <= axis:
            raise PortingError(f"{name} is missing; expected the weights of a BERT or ERNIE")
        return shapes[name][axis]

    hidden_size = size("embeddings.word_embeddings.weight", 1)
    layers = {int(match[1]) for name in shapes if (match := re.match(r"encoder\.layer\.(\d{1,6})\.", name))}
    heads, has_tasks = given["heads"], "embeddings.task_type_embeddings.weight" in shapes
    if not isinstance(heads, int) or isinstance(heads, bool) or heads < 1 or hidden_size % heads:
        raise PortingError(f"heads is {heads!r}; expected a divisor of the hidden size {hidden_size}, correct it")
    heads_on_top = _heads(shapes)
    return {
        **_FAMILY,
        "hidden_size": hidden_size,
        "layers": max(layers, default=-1) + 1,
        "key_size": hidden_size // heads,
        "value_size": hidden_size // heads,
        "feed_forward_size": size("encoder.layer.0.intermediate.dense.weight", 0),
        "source_vocabulary": size("embeddings.word_embeddings.weight", 0),
        "source_max_length": size("embeddings.position_embeddings.weight", 0),
        "segments": size("embeddings.token_type_embeddings.weight", 0),
        "tasks": size("embeddings.task_type_embeddings.weight", 0) if has_tasks else 0,
        "heads_on_top": heads_on_top,
        "tied_embeddings": "masked_lm" in heads_on_top and "cls.predictions.decoder.weight" not in shapes,
    }


def _heads(tensor_names: Collection[str]) -> list[Head]:
    found: list[Head] = [head for head, name in _HEADS.items() if name in tensor_names]
    if "next_sentence" in found and "pooler" not in found:
        raise PortingError(f"missing {_HEADS['pooler']}, which {_HEADS['next_sentence']} reads; save the whole model")
    return found


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise PortingError(f"{CONFIG_FILE}: {name} is missing; add it, as the model was trained")
    return fields[name]


def _number(fields: Mapping[str, Any], name: str, kind: type[int | float]) -> Any:
    value = _field(fields, name)
    accepted = int if kind is int else (int, float)
    if not isinstance(value, accepted) or isinstance(value, bool):
        raise _refuse(name, value, "a whole number" if kind is int else "a number")
    return value


def _size(fields: Mapping[str, Any], name: str) -> int:
    value = _number(fields, name, int)
    if value < 1:
        raise _refuse(name, value, "a whole number of at least 1")
    return value


def _flag(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise _refuse(name, value, "true or false")
    return value


def _refuse(name: str, got: object, expected: str) -> PortingError:
    return PortingError(f"{CONFIG_FILE}: {name} is {got!r}; expected {expected}, other models are not supported")
