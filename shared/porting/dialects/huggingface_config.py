"""The configuration of the dialect ``huggingface``: ``config.json`` to ``ModelConfig`` and back."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from triglot.shared.errors import ConfigError, PortingError
from triglot.shared.model.config import Head, ModelConfig
from triglot.shared.model.recipes import ConfigOverride
from triglot.shared.porting.heads import check_heads
from triglot.shared.porting.source import CONFIG_FILE

from .dialect import inexpressible, unanswered
from .huggingface_families import Family
from .library import Library
from .sizes import from_shapes, of_one_head, tensor_that_shows

# Head -> ending of the class name in transformers. The first head that a model has decides.
_CLASSES: dict[Head, str] = {
    "sequence_classifier": "ForSequenceClassification",
    "token_classifier": "ForTokenClassification",
    "replaced_token": "ForPreTraining",
    "next_sentence": "ForNextSentencePrediction",
    "masked_lm": "ForMaskedLM",
}
_CLASSIFIERS: tuple[Head, Head] = ("sequence_classifier", "token_classifier")
# The fields that a bare state dict does not show.
_NOT_IN_WEIGHTS = ("heads", "activation", "norm_eps", "masking")
# The sizes that each model has.
_SHOWN_SIZES = ("source_vocabulary", "source_max_length", "hidden_size", "feed_forward_size")

# What Triglot lacks for other well-known types.
_LACKING = {
    "mpnet": "a relative position bias",
    "albert": "layers that share their weights",
    "deberta": "disentangled attention",
    "deberta-v2": "disentangled attention",
    "modernbert": "rotary positions and gated feed-forward layers",
}

_UNSUPPORTED = "Triglot does not support other models"
_CORRECT = "use the value that the model was trained with"


def family_of(library: Library, fields: Mapping[str, Any], origin: str = CONFIG_FILE) -> Family:
    """Return the family that ``model_type`` names; ``origin`` is the source of ``fields``, for messages.

    Raises:
        PortingError: it names none, or one that is not supported.
    """
    model_type = fields.get("model_type")
    if isinstance(model_type, str) and model_type in _LACKING:
        raise PortingError(
            f"{origin}: model_type is {model_type!r}; expected one of {', '.join(library.model_types)}; Triglot does "
            f"not support {_LACKING[model_type]}"
        )
    return library.model_types[_choice(fields, "model_type", library.model_types, origin)]


def check_names(library: Library, family: Family, names: Collection[str]) -> None:
    """Refuse names that only another family has; ``names`` are those in the file.

    Raises:
        PortingError: there is such a name.
    """
    for other in library.families:
        marked = next((name for name in names if name.startswith(other.marks)), None)
        if other is not family and marked is not None:
            raise PortingError(
                f"{marked} is a name of {other.name}, but model_type is {family.name}; correct model_type"
            )


def family_of_bare_weights(library: Library, names: Collection[str], override: ConfigOverride) -> Family:
    """Return the family that the names of the tensors show, or the user's ``model_type`` if they do not.

    Raises:
        PortingError: several families have these names, and the user does not say which one it is.
    """
    given: Mapping[str, Any] = override if isinstance(override, Mapping) else {}
    if "model_type" in given:
        family = family_of(library, given, "configuration")
        check_names(library, family, names)
        return family
    found = [family for family in library.families if any(name.startswith(family.marks) for name in names)]
    if len(found) == 1:
        return found[0]
    offset = given.get("position_offset")
    if (
        type(offset) is int
        and offset > 0
        and (with_offset := [other for other in library.families if other.pad_offset])
    ):
        return with_offset[0]
    # A whole configuration answers everything, and ``position_offset`` 0 tells BERT from RoBERTa.
    if not isinstance(override, str | ModelConfig) and "position_offset" not in given:
        asked = [name for name in _NOT_IN_WEIGHTS if any(name not in family.fields for family in library.families)]
        types = [family.name for family in library.families]
        raise unanswered(["model_type", *(name for name in asked if name not in given)], types)
    return library.families[0]


def architectures_of(fields: Mapping[str, Any]) -> list[str]:
    """Return the names of the classes in ``config.json``; none if it names none.

    Raises:
        PortingError: the field is no list of names.
    """
    value = fields.get("architectures")
    names: list[object] = cast("list[object]", value) if isinstance(value, list) else [None]
    if value is None:
        return []
    if not all(isinstance(name, str) for name in names):
        raise _refused("architectures", cast("object", value), "a list of the names of classes, or null")
    return [str(name) for name in names]


def heads_of(
    family: Family, names: Collection[str], kept: Collection[str] | None, architectures: Sequence[str] = ()
) -> list[Head]:
    """Return the heads that the tensors show and that are to be kept; None: all.

    ``architectures`` are the names of the model's classes, if they are known.

    Raises:
        PortingError: a tensor or a head is missing, or two heads have the same names and no class says which it is.
    """
    found: list[Head] = [head for head, name in family.shown_by.items() if name in names]
    if family.pooler_of_classifier and "sequence_classifier" in found and "pooler" not in found:
        found.insert(0, "pooler")
    if set(_CLASSIFIERS) & set(found):
        classifier = _classifier(family, found, kept, architectures)
        found = [head for head in found if head not in _CLASSIFIERS or head == classifier]
    check_heads(kept or (), found)
    heads: list[Head] = [head for head in found if kept is None or head in kept]
    if "pooler" in heads and "sequence_classifier" not in heads and family.shown_by["pooler"] not in names:
        raise PortingError(
            f"the pooler of this {family.name} is part of its sequence_classifier; keep both or neither (heads=, or "
            "--heads on the command line)"
        )
    if "next_sentence" in heads and "pooler" not in found:
        raise PortingError(
            f"missing {family.shown_by['pooler']}, whose output {family.shown_by['next_sentence']} reads; save the "
            "whole model"
        )
    return heads


def _classifier(
    family: Family, found: Collection[Head], kept: Collection[str] | None, architectures: Sequence[str]
) -> Head | None:
    """Return the classifier of a model that has one; None: the user does not keep it, so it does not matter which.

    The class decides, because a multiple-choice model has the same tensors. Without a class, the user decides, or names
    that no other model has.
    """
    wanted: list[Head] | None = None if kept is None else [head for head in _CLASSIFIERS if head in kept]
    if wanted == []:
        return None
    starts = [f"{maker}{start}" for maker in ("", "TF", "Flax") for start in family.model_types.values()]
    classes: dict[str, Head] = {f"{start}{_CLASSES[head]}": head for start in starts for head in _CLASSIFIERS}
    named: list[Head] = [classes[name] for name in architectures if name in classes]
    if len(set(named)) == 1 and named[0] in found:
        return named[0]
    if wanted and not architectures:
        return wanted[0]  # the user's answer
    if family.name == "distilbert" and "pooler" in found:
        found = [head for head in found if head != "token_classifier"]
    classifier: Head = "token_classifier" if "token_classifier" in found else "sequence_classifier"
    if architectures or (classifier == "token_classifier" and "pooler" in found):
        raise PortingError(
            f"{family.shown_by[classifier]} may belong to a classifier of sequences or of tokens or to a "
            f"multiple-choice model; name {' or '.join(_CLASSES[head] for head in _CLASSIFIERS)} in architectures of "
            f"{CONFIG_FILE}, or say which heads to keep (heads=, or --heads on the command line)"
        )
    return classifier


def completed(family: Family, fields: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``config.json``, completed with the user's fields, which have Triglot's names.

    Missing dropouts are 0, because only training uses them.
    """
    words = {**family.sizes, **family.numbers}
    answers = {words[name]: given[name] for name in words if name in given}
    activations = {ours: name for name, ours in family.activations.items()}
    if given.get("activation") in activations:
        answers[family.activation] = activations[given["activation"]]
    if family.pad_offset and type(longest := given.get("source_max_length")) is int:
        answers[words["source_max_length"]] = longest + fields.get("pad_token_id", 0) + 1
    dropouts = {words[name]: 0.0 for name in ("residual_dropout", "attention_dropout")}
    return {**dropouts, **answers, **fields}


def from_json(
    family: Family, fields: Mapping[str, Any], heads_on_top: Collection[Head], classes: int = 0
) -> ModelConfig:
    """Return the configuration that ``config.json`` describes, of a model with these heads and classes.

    Raises:
        PortingError: a field is missing, impossible, or not supported.
    """
    model_type = _choice(fields, "model_type", family.model_types)
    activation = _choice(fields, family.activation, family.activations)
    for name, only in (("position_embedding_type", "absolute"), ("is_decoder", False), ("add_cross_attention", False)):
        if fields.get(name) not in (None, only):
            raise _refused(name, fields[name], repr(only), _UNSUPPORTED)
    if fields.get("auto_map"):
        raise _refused(
            "auto_map",
            fields["auto_map"],
            "none",
            "the folder's own code may compute something else; remove auto_map if not",
        )
    sizes = {name: _size(fields, json_name) for name, json_name in family.sizes.items()}
    numbers = {name: _field(fields, json_name) for name, json_name in family.numbers.items()}
    hidden_size, heads, pad_id = sizes["hidden_size"], sizes["heads"], fields.get("pad_token_id")
    if hidden_size % heads:
        raise _refused(family.sizes["heads"], heads, f"a divisor of {family.sizes['hidden_size']} {hidden_size}")
    if sizes.get("embedding_size") == hidden_size:
        sizes["embedding_size"] = 0
    has_tasks = _flag(fields, "use_task_id", default=False)
    if has_tasks and model_type != "ernie":
        raise _refused("use_task_id", has_tasks, "true for an ERNIE with tasks, or false")
    offset = 0
    if family.pad_offset:
        offset = _size(fields, "pad_token_id", least=0) + 1
        if sizes["source_max_length"] <= offset:
            longest = family.sizes["source_max_length"]
            raise _refused(longest, sizes["source_max_length"], f"more than pad_token_id + 1, which is {offset}")
        sizes["source_max_length"] -= offset
    tied = _flag(fields, "tie_word_embeddings", default=True)
    config_fields = {
        "masking": "exclude",
        **family.fields,
        **sizes,
        **numbers,
        "position_offset": offset,
        "embedding_dropout": numbers["residual_dropout"],
        "key_size": hidden_size // heads,
        "value_size": hidden_size // heads,
        "tasks": _size(fields, "task_type_vocab_size") if has_tasks else 0,
        "pad_id": pad_id,
        "activation": family.activations[activation],
        **_head_fields(family, heads_on_top, tied="masked_lm" in heads_on_top and tied),
        "classes": classes,
    }
    try:
        return ModelConfig.from_dict(config_fields)
    except ConfigError as error:
        words = _json_words(family)
        problem = re.sub(r"\w+", lambda match: words.get(match[0], match[0]), str(error))
        raise PortingError(f"{problem}; {_CORRECT}") from error


def to_json(library: Library, config: ModelConfig) -> tuple[Family, dict[str, Any]]:
    """Return the family that expresses ``config``, and the content of ``config.json``.

    This is the inverse of ``from_json``.

    Raises:
        PortingError: the family cannot express the configuration.
    """
    # Refuse what ``from_json`` could not even read back.
    if config.kind != "encoder":
        raise inexpressible(library.dialect, [f"kind {config.kind!r} (only 'encoder')"])
    losses = ["source_vocabulary 0 (only 1 or more)"] * (not config.source_vocabulary)
    if config.hidden_size % config.heads:
        losses.append(f"heads {config.heads} (only divisors of hidden_size {config.hidden_size})")
    if set(_CLASSIFIERS) <= set(config.heads_on_top):
        losses.append("two classifiers (only one)")
    if losses:
        raise inexpressible(library.dialect, losses)
    family = next(family for family in library.families if family.name == library.family_for(config))
    fields, losses = _expressed(family, config)
    if losses:
        raise inexpressible(library.dialect, losses)
    return family, fields


def check_activation(family: Family, config: ModelConfig) -> None:
    """Refuse heads that always use the exact GELU beside another activation of the layers.

    Raises:
        PortingError: the model has such a head.
    """
    exact = [head for head in family.exact_heads if head in config.heads_on_top]
    if exact and config.activation != "gelu":
        raise PortingError(
            f"activation is {config.activation!r}; expected 'gelu', which the head {exact[0]} of {family.name} always "
            "uses; leave this head out (heads=, or --heads on the command line)"
        )


def of_bare_weights(
    family: Family, shapes: Mapping[str, tuple[int, ...]], heads_on_top: Collection[Head], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields that the names and shapes of bare weights show; ``given`` holds those of the user.

    Raises:
        PortingError: a tensor is missing, or the user did not give a field that the weights do not show.
    """
    asked = [name for name in _NOT_IN_WEIGHTS if name not in family.fields]
    if family.pad_offset and "position_offset" not in given:
        asked.append("pad_id")
    if missing := [name for name in asked if name not in given]:
        raise unanswered(missing)
    table = family.table(heads_on_top)
    sizes = from_shapes(table, shapes)
    for field in (*_SHOWN_SIZES, *(["segments"] if "segments" in family.sizes else [])):
        if field not in sizes:
            raise PortingError(
                f"{tensor_that_shows(table, field)} is missing; expected the weights of the type "
                f"{' or '.join(family.model_types)}; {_UNSUPPORTED}"
            )
    fields: dict[str, Any] = {
        **family.fields,
        **of_one_head(sizes, given["heads"]),
        **_head_fields(family, heads_on_top, tied="masked_lm" in heads_on_top and family.decoder not in shapes),
    }
    offset = given.get("position_offset")
    if offset is None and family.pad_offset:
        pad_id = given["pad_id"]
        if type(pad_id) is not int or pad_id < 0:
            raise PortingError(f"pad_id is {pad_id!r}; expected a whole number of at least 0")
        fields["position_offset"] = offset = pad_id + 1
    if type(offset) is int:
        fields["source_max_length"] -= offset
    return fields


def _head_fields(family: Family, heads_on_top: Collection[Head], *, tied: bool) -> dict[str, Any]:
    return {
        "heads_on_top": list(heads_on_top),
        "tied_embeddings": tied,
        "pooler_activation": family.pooler_activation if "pooler" in heads_on_top else "tanh",
    }


def _expressed(family: Family, config: ModelConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the content of ``config.json``, and the fields of ``config`` that it does not express."""
    wanted = config.to_dict()
    losses = [f"heads_on_top {head!r}" for head in config.heads_on_top if head not in family.shown_by]
    alone = "pooler" in config.heads_on_top and "sequence_classifier" not in config.heads_on_top
    if alone and family.pooler_activation != "tanh":
        losses.append("heads_on_top 'pooler' (only with 'sequence_classifier')")
    if "segments" in family.sizes and not config.segments:
        losses.append("segments 0 (only 1 or more)")
    if any(head in family.exact_heads for head in config.heads_on_top) and config.activation != "gelu":
        losses.append(f"activation {config.activation!r} (only 'gelu')")
    if family.pads and config.pad_id is None:
        losses.append("pad_id None (only a number)")
    losses += [
        f"heads_on_top {head!r} (only with {other!r})"
        for head, other in family.needs.items()
        if head in config.heads_on_top and other not in config.heads_on_top
    ]
    if config.activation not in family.activations.values():
        losses.append(f"activation {config.activation!r} (only {', '.join(map(repr, family.activations.values()))})")
    if losses:
        return {}, losses
    model_type = "ernie" if config.tasks and "ernie" in family.model_types else family.name
    sizes = wanted | {"embedding_size": config.embedding_width}
    if family.pad_offset and config.pad_id is not None:
        sizes["source_max_length"] += config.pad_id + 1
    fields: dict[str, Any] = {
        "architectures": [_class_name(family, model_type, config.heads_on_top)],
        "model_type": model_type,
        "pad_token_id": config.pad_id,
        family.activation: next(
            name for name, activation in family.activations.items() if activation == config.activation
        ),
        "tie_word_embeddings": config.tied_embeddings or "masked_lm" not in config.heads_on_top,
        **{json_name: sizes[name] for name, json_name in {**family.sizes, **family.numbers}.items()},
    }
    if config.tasks and model_type == "ernie":
        fields |= {"use_task_id": True, "task_type_vocab_size": config.tasks}
    if config.classes not in (0, 2):  # transformers counts the names; two is its default
        fields["id2label"] = {str(number): f"LABEL_{number}" for number in range(config.classes)}
        fields["label2id"] = {label: int(number) for number, label in fields["id2label"].items()}
    # Read the fields back to find what they cannot express.
    expressed = from_json(family, fields, config.heads_on_top, config.classes).to_dict()
    losses = [
        f"{name} {wanted[name]!r} (only {expressed[name]!r})" for name in wanted if wanted[name] != expressed[name]
    ]
    return fields, losses


def _class_name(family: Family, model_type: str, heads: Collection[Head]) -> str:
    """Return the class of transformers that has these heads."""
    start = family.model_types[model_type]
    if pre_training := family.pre_training.get(frozenset(heads)):
        return start + pre_training
    return start + next((end for head, end in _CLASSES.items() if head in heads), "Model")


def _json_words(family: Family) -> dict[str, str]:
    """Map field names in the errors of ``ModelConfig`` to those of config.json."""
    return {
        **family.sizes,
        **family.numbers,
        "configuration": CONFIG_FILE,
        "pad_id": "pad_token_id",
        "embedding_dropout": family.numbers["residual_dropout"],
    }


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise PortingError(
            f"{CONFIG_FILE}: {name} is missing; add the value that the model was trained with, or pass it under "
            "Triglot's name (config=, or --set on the command line)"
        )
    return fields[name]


def _choice(fields: Mapping[str, Any], name: str, choices: Collection[str], origin: str = CONFIG_FILE) -> str:
    value = _field(fields, name)
    if not isinstance(value, str) or value not in choices:
        raise PortingError(f"{origin}: {name} is {value!r}; expected one of {', '.join(choices)}; {_UNSUPPORTED}")
    return value


def _size(fields: Mapping[str, Any], name: str, least: int = 1) -> int:
    value = _field(fields, name)
    if type(value) is not int or value < least:
        raise _refused(name, value, f"a whole number of at least {least}")
    return value


def _flag(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = fields.get(name)
    if value is None:  # the same as an absent field
        return default
    if not isinstance(value, bool):
        raise _refused(name, value, "true or false")
    return value


def _refused(name: str, value: object, expected: str, remedy: str = _CORRECT) -> PortingError:
    return PortingError(f"{CONFIG_FILE}: {name} is {value!r:.80}; expected {expected}; {remedy}")
