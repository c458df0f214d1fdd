"""Dialect ``paddlenlp``: BERT and ERNIE as PaddleNLP stores them.

A model is a folder with ``config.json`` or, before version 2.5, ``model_config.json``, and ``model_state.pdparams``; or
a bare file of weights. Linear weights are (in, out), but the decoder of the masked_lm head is (vocabulary, hidden).
Names and configurations were read from PaddleNLP 2.8.1 and 2.3.7, ``transformers/bert`` and ``transformers/ernie``.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from triglot.shared.errors import PortingError
from triglot.shared.model.config import ModelConfig
from triglot.shared.porting.source import CONFIG_FILE, OLD_CONFIG_FILE

from .huggingface import dialect_of
from .huggingface_families import NUMBERS, Family
from .library import Library
from .stock_transformer import PADDLE_LAYER
from .table import Table

_LAYER = "encoder.layers.{index}"
BERT = Family(
    model_types={"bert": "Bert"},
    modules={
        "embeddings.token": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.segment": "embeddings.token_type_embeddings",
        "embeddings.process.norm": "embeddings.layer_norm",
        # The layers are Paddle's own.
        **{f"encoder.layers.N.{path}": f"{_LAYER}.{name}" for path, name in PADDLE_LAYER.items()},
        "heads.pooler": "pooler.dense",
        "heads.masked_lm.transform": "cls.predictions.transform",
        "heads.masked_lm.norm": "cls.predictions.layer_norm",
        "heads.masked_lm.decoder": "cls.predictions.decoder",
        "heads.masked_lm.bias": "cls.predictions.decoder_bias",
        "heads.next_sentence": "cls.seq_relationship",
        "heads.sequence_classifier": "classifier",
        "heads.token_classifier": "classifier",
    },
    shown_by={
        "pooler": "pooler.dense.weight",
        "masked_lm": "cls.predictions.transform.weight",
        "next_sentence": "cls.seq_relationship.weight",
        "sequence_classifier": "classifier.weight",
        "token_classifier": "classifier.weight",
    },
    marks=("bert.",),
    decoder="cls.predictions.decoder.weight",
    bias="cls.predictions.decoder_bias",
    duplicate_bias="cls.predictions.decoder.bias",
    activations={"gelu": "gelu", "relu": "relu"},  # by their names in paddle.nn.functional
    fixed={"masking": "add", "masking_value": -1e4},
    pads=True,
    needs={"next_sentence": "masked_lm"},
    pre_training={frozenset({"pooler", "masked_lm", "next_sentence"}): "ForPretraining"},
    style=Table("paddlenlp", {}, transposed=False),
    repeats=True,
)
# The epsilon is 1e-12 whatever ``layer_norm_eps`` says.
ERNIE = replace(
    BERT,
    model_types={"ernie": "Ernie"},
    modules={**BERT.modules, "embeddings.task": "embeddings.task_type_embeddings"},
    marks=("ernie.", "embeddings.task_type_embeddings."),
    numbers={name: field for name, field in NUMBERS.items() if name != "norm_eps"},
    fixed={**BERT.fixed, "norm_eps": 1e-12},
)

# What PaddleNLP assumes if a configuration lacks it.
_DEFAULTS = {"layer_norm_eps": 1e-12, "pad_token_id": 0, "task_type_vocab_size": 3}
_CLASS = re.compile(r"(Bert|Ernie)(?:Model|For\w+)")


def standard(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration of PaddleNLP, new or old, as transformers would write it.

    Raises:
        PortingError: the class is not known, or a field asks for what BERT and ERNIE in transformers do not have.
    """
    flat = _flattened(fields)
    classes = flat.get("architectures")
    name: object = cast("list[object]", classes)[0] if isinstance(classes, list) and classes else None
    if "model_type" not in flat:
        match = _CLASS.fullmatch(name) if isinstance(name, str) else None
        if match is None:
            raise PortingError(
                f"{CONFIG_FILE}: its class (init_class or architectures) is {name!r:.80}; expected a class of BERT or "
                "ERNIE, such as BertModel; or give the file of weights alone"
            )
        flat["model_type"] = match[1].lower()
    is_bert = flat["model_type"] == "bert"
    for field, only, counts in (("pool_act", "tanh", is_bert), ("fuse", False, is_bert), ("task_id", 0, not is_bert)):
        if counts and flat.get(field) not in (None, only):
            raise PortingError(
                f"{CONFIG_FILE}: {field} is {flat[field]!r:.80}; expected {only!r}; Triglot does not support other "
                "models"
            )
    return {**_DEFAULTS, **flat}


def _flattened(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration without the nesting of old ones, in ``init_args``.

    Plain numbers in ``init_args`` are ignored: the number of classes, which the tensors show, and the dropout of a
    classifier, which only training needs.
    """
    flat = {name: value for name, value in fields.items() if name not in ("init_args", "init_class")}
    nested: object = fields.get("init_args", [])
    if not isinstance(nested, list):
        raise PortingError(f"{CONFIG_FILE}: init_args is {nested!r:.80}; expected a list; restore {OLD_CONFIG_FILE}")
    for arguments in cast("list[object]", nested):
        if isinstance(arguments, dict):
            flat = {**cast("dict[str, Any]", arguments), **flat}
    name = fields.get("init_class", flat.pop("init_class", None))
    return flat if name is None else {**flat, "architectures": [name]}


def _family_for(config: ModelConfig) -> str:
    """Return the name of the family that expresses ``config``."""
    return ERNIE.name if config.tasks else BERT.name


_LIBRARY = Library(
    "paddlenlp",
    (BERT, ERNIE),
    _family_for,
    "model_state.pdparams",
    ("embeddings.process.norm.scale", "encoder.layers.0.attention.query.weight"),
    standard,
    old_names={"cls.predictions.decoder_weight": "cls.predictions.decoder.weight"},  # before 2.5
    others="decoder.layers.",  # ``paddle.nn.Transformer`` calls its encoder's layers as BERT calls its own
)
DIALECT = dialect_of(
    _LIBRARY, f"a folder with {CONFIG_FILE} or {OLD_CONFIG_FILE} and {_LIBRARY.weights_file}, or bare weights"
)
