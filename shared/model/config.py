"""The model configuration: every axis on which the supported models differ, validated here and only here.

A field has no default if common models differ in it and strict loading would not notice a wrong value. A wrong epsilon
or a wrong GELU loads without complaint in every framework, so a configuration has to state them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from triglot.shared.errors import ConfigError, suggestion

Kind = Literal["encoder", "encoder_decoder", "attention"]
Activation = Literal["relu", "gelu", "gelu_tanh"]
Masking = Literal["exclude", "fill", "add"]
Positions = Literal["none", "learned", "sinusoidal", "sinusoidal_per_dimension"]
Norm = Literal["layer_norm", "scalar_layer_norm"]
AttentionOutputActivation = Literal["none", "relu"]
Initializer = Literal["bert", "translation", "prenorm", "annotated", "multihead"]
PoolerActivation = Literal["tanh", "relu", "gelu", "gelu_tanh"]
SentencePooling = Literal["none", "mean", "cls", "max"]
DenseActivation = Literal["none", "tanh", "relu", "gelu", "gelu_tanh"]
Head = Literal[
    "logits",
    "log_probabilities",
    "pooler",
    "masked_lm",
    "next_sentence",
    "sequence_classifier",
    "token_classifier",
    "replaced_token",
    "sentence_embedding",
]

DECODER_HEADS: tuple[Head, ...] = ("logits", "log_probabilities")

_DECODER_SIZES = ("decoder_layers", "target_vocabulary", "target_max_length")
DROPOUT_RATES = (
    "embedding_dropout",
    "residual_dropout",
    "attention_dropout",
    "attention_output_dropout",
    "feed_forward_dropout",
    "feed_forward_output_dropout",
)
_LISTS = ("heads_on_top", "sentence_layers")  # tuples here, lists in JSON
_PROCESS_COMMANDS = {"a": "add the residual", "n": "normalise", "d": "drop out"}


@dataclass(frozen=True, kw_only=True)
class DenseLayer:
    """A linear layer to vectors of a ``size``, and the activation after it.

    Raises:
        ConfigError: a value is impossible; the message has the field, its value and what it accepts.
    """

    size: int
    bias: bool
    activation: DenseActivation

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise _refuse("size in sentence_layers", self.size, "a whole number of at least 1")
        if type(self.bias) is not bool:
            raise _refuse("bias in sentence_layers", self.bias, "a value of type bool")
        if self.activation not in (names := get_args(DenseActivation)):
            raise _refuse("activation in sentence_layers", self.activation, f"one of {', '.join(names)}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One Transformer. Frozen, comparable, and JSON round-trippable through ``to_dict`` and ``from_dict``.

    Sizes
        ``hidden_size`` D, ``layers``, ``heads`` H, ``key_size`` K and ``value_size`` V of each head (they need not be
        D / H), ``feed_forward_size`` F. ``decoder_layers`` belong to an ``encoder_decoder``. The kind ``attention`` is
        a single multi-head attention: it has no layers, processes, embeddings or heads, its norm and activation are
        not used, and its maximum lengths are those of the keys and of the queries.

    Inputs
        ``source_vocabulary`` 0 means that the input is already embedded, shape (B, S, D). ``source_max_length`` is
        the longest sequence. ``segments`` and ``tasks`` are the vocabulary sizes of the segment and task ids of
        BERT and ERNIE, 0 for none. ``positions`` are added to the token embeddings; a learned table begins with
        ``position_offset`` unused rows. With ``positions_skip_padding``, positions count only the real tokens of a
        row, as in RoBERTa. ``pad_id`` pads short rows of a batch; None: no id is padding. ``embedding_scale``
        multiplies token embeddings by the square root of D. ``embedding_size`` E, if not 0, is the size of the
        embeddings; a linear layer projects them to D, as in ELECTRA.

    Targets
        The decoder reads ids of ``target_vocabulary``, up to ``target_max_length``. If both vocabularies are 0, it
        reads vectors, (B, T, D), as the encoder does. A sentence begins with ``start_id`` and ends with ``end_id``.
        ``shared_embeddings``: source and target read one table. ``normalize_memory``: the norm before the
        cross-attention normalises the output of the encoder, not only the query.

    Processes
        Strings of commands: ``a`` adds the residual, ``n`` normalises, ``d`` drops out. They run from left to right
        around each sublayer (``pre_process``, ``post_process``), after the last layer (``final_process``) and after
        the embeddings (``embedding_process``). Pre-norm is "n" / "da", post-norm is "" / "dan". A "d" may come twice.

    Arithmetic
        ``norm_eps`` is added to the variance, or, for the ``scalar_layer_norm``, to the standard deviation.
        Biases that a model may lack: ``projection_bias`` of query, key and value; ``output_bias`` of the layer after
        them; ``feed_forward_bias`` of both linear layers of the feed-forward network; ``final_norm_bias`` of the norm
        in ``final_process``; ``norm_bias`` of all other norms.
        ``activation`` "gelu" is the exact GELU, by the error function. ``attention_output_activation`` follows the
        attention. ``masking`` decides what happens to a masked score: ``exclude`` makes its weight exactly 0, ``fill``
        replaces it by ``masking_value``, ``add`` adds ``masking_value`` to it. The value is clamped to the lowest
        finite number of the dtype that the softmax runs in, float32 or float64.

    Heads
        An encoder can have these ``heads_on_top``: ``pooler``, ``masked_lm`` and ``next_sentence`` (BERT),
        ``replaced_token`` (ELECTRA), ``sequence_classifier`` and ``token_classifier``. ``next_sentence`` and
        ``sequence_classifier`` read the pooler. ``classes`` is the number of classes of a classifier.
        ``pooler_activation`` is tanh in BERT and RoBERTa, relu in DistilBERT and gelu in ELECTRA. With
        ``tied_embeddings`` the masked_lm head scores tokens with the token embedding instead of its own table. An
        ``encoder_decoder`` has ``logits`` or ``log_probabilities`` over the target vocabulary; without a vocabulary, it
        has no head.
        ``sentence_embedding`` is one vector for each row, as in Sentence-BERT: the real tokens are pooled by
        ``sentence_pooling`` (their ``mean``, their maximum ``max``, or the first of them, ``cls``), go through the
        ``sentence_layers``, and, if ``sentence_normalized``, are scaled to length 1.

    Initialisation
        ``initializer`` names the rules by which random weights are drawn (``initializers.py``): those of ``bert``, or
        of the article whose recipe has that name. Trained weights do not need it.

    Raises:
        ConfigError: a value or a combination is impossible; the message has the field, its value and what it accepts.
    """

    kind: Kind = "encoder"
    hidden_size: int
    layers: int
    heads: int
    key_size: int
    value_size: int
    feed_forward_size: int
    source_vocabulary: int
    source_max_length: int
    decoder_layers: int = 0
    target_vocabulary: int = 0
    target_max_length: int = 0
    segments: int = 0
    tasks: int = 0
    positions: Positions
    position_offset: int = 0
    positions_skip_padding: bool = False
    embedding_size: int = 0
    embedding_scale: bool = False
    shared_embeddings: bool = False
    normalize_memory: bool = False
    pad_id: int | None = None
    start_id: int | None = None
    end_id: int | None = None
    embedding_process: str = ""
    pre_process: str
    post_process: str
    final_process: str
    norm: Norm = "layer_norm"
    norm_eps: float
    activation: Activation
    attention_output_activation: AttentionOutputActivation = "none"
    projection_bias: bool = True
    output_bias: bool = True
    feed_forward_bias: bool = True
    norm_bias: bool = True
    final_norm_bias: bool = True
    masking: Masking
    masking_value: float | None = None
    embedding_dropout: float = 0.0
    residual_dropout: float = 0.0
    attention_dropout: float = 0.0
    attention_output_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    feed_forward_output_dropout: float = 0.0
    heads_on_top: tuple[Head, ...] = ()
    pooler_activation: PoolerActivation = "tanh"
    classes: int = 0
    tied_embeddings: bool = False
    sentence_pooling: SentencePooling = "none"
    sentence_layers: tuple[DenseLayer, ...] = ()
    sentence_normalized: bool = False
    initializer: Initializer = "bert"

    def __post_init__(self) -> None:
        _check_types(self)
        _check_sizes(self)
        _check_processes(self)
        _check_inputs(self)
        _check_arithmetic(self)
        _check_heads(self)
        if self.kind == "encoder_decoder":
            _check_decoder(self)
        else:
            _check_no_decoder(self)
        if self.kind == "attention":
            _check_attention_alone(self)
        for name in ("norm_eps", "masking_value", *DROPOUT_RATES):
            if isinstance(getattr(self, name), int):  # 0 and 0.0 are the same model, so they get the same digest
                object.__setattr__(self, name, float(getattr(self, name)))

    def to_dict(self) -> dict[str, Any]:
        """Return every field as plain JSON types, in the order of the class."""
        fields = dataclasses.asdict(self)
        return {**fields, **{name: list(fields[name]) for name in _LISTS}}

    def identity(self) -> dict[str, Any]:
        """Return the fields of ``to_dict`` that differ from their defaults. New fields of Triglot do not change it."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: value for name, value in self.to_dict().items() if getattr(self, name) != defaults[name]}

    @property
    def embedding_width(self) -> int:
        """The size of the embeddings, before a projection if there is one."""
        return self.embedding_size or self.hidden_size

    @property
    def sentence_sizes(self) -> tuple[int, ...]:
        """The size of the pooled vector, and of what each of the ``sentence_layers`` makes of it."""
        return (self.hidden_size, *(layer.size for layer in self.sentence_layers))

    @property
    def special_ids(self) -> tuple[int, int, int]:
        """Start, end and pad id of a model that generates; ``generation_batch`` refuses a model that lacks one."""
        assert self.start_id is not None
        assert self.end_id is not None
        assert self.pad_id is not None
        return self.start_id, self.end_id, self.pad_id

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ModelConfig:
        """Return the configuration that ``to_dict`` described.

        Raises:
            ConfigError: a field is unknown, missing or wrong.
        """
        if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"configuration: got {type(fields).__name__}; expected an object of fields by name")
        config_fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - set(config_fields))
        if unknown:
            raise ConfigError(
                f"configuration: unknown field {', '.join(unknown)}; {suggestion(unknown[0], list(config_fields))}"
                f"correct or remove it; expected {', '.join(config_fields)}"
            )
        required = {name for name, field in config_fields.items() if field.default is dataclasses.MISSING}
        missing = sorted(required - set(fields))
        if missing:
            raise ConfigError(f"configuration: missing field {', '.join(missing)}; give each a value")
        values = dict(fields)
        for name in _LISTS:
            if isinstance(fields.get(name), list):
                values[name] = tuple(cast("list[Any]", fields[name]))
        if isinstance(layers := values.get("sentence_layers"), tuple):
            values["sentence_layers"] = tuple(_dense_layer(layer) for layer in cast("tuple[Any, ...]", layers))
        return cls(**values)


def _dense_layer(fields: object) -> object:
    """Return the layer that an object of JSON describes; anything else as it is, for ``ModelConfig`` to refuse."""
    names = {field.name for field in dataclasses.fields(DenseLayer)}
    if not isinstance(fields, dict) or fields.keys() != names:
        return cast("object", fields)
    return DenseLayer(**cast("dict[str, Any]", fields))


def _refuse(field: str, got: object, expected: str) -> ConfigError:
    return ConfigError(f"configuration: {field} is {got!r}; expected {expected}")


def _check_fields(config: ModelConfig, expected: Mapping[str, object], reason: str) -> None:
    """Refuse a field without the one value that the other fields allow."""
    for name, value in expected.items():
        if getattr(config, name) != value:
            raise _refuse(name, getattr(config, name), f"{value!r}: {reason}")


def _check_at_least(config: ModelConfig, least: int, names: tuple[str, ...], expected: str) -> None:
    for name in names:
        if getattr(config, name) < least:
            raise _refuse(name, getattr(config, name), expected)


def _check_types(config: ModelConfig) -> None:
    for name, hint in get_type_hints(ModelConfig).items():
        value, arguments = getattr(config, name), get_args(hint)
        if name == "heads_on_top":
            heads = get_args(Head)
            if type(value) is not tuple or value != tuple(head for head in heads if head in value):
                raise _refuse(
                    name,
                    config.heads_on_top,
                    f"a tuple (a list in JSON) of {', '.join(heads)}, in this order, none twice",
                )
        elif name == "sentence_layers":
            layers = cast("tuple[object, ...]", value)
            if type(value) is not tuple or not all(isinstance(layer, DenseLayer) for layer in layers):
                raise _refuse(name, layers, "a tuple of DenseLayer (in JSON a list of objects: size, bias, activation)")
        elif get_origin(hint) is Literal:
            if value not in arguments:
                raise _refuse(name, value, f"one of {', '.join(arguments)}")
        else:
            accepted: tuple[type, ...] = arguments or (hint,)
            if float in accepted:
                accepted = (*accepted, int)
            # bool is a subclass of int, but True is not a size.
            if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
                names = " or ".join(t.__name__.replace("NoneType", "null") for t in accepted)
                raise _refuse(name, value, f"a value of type {names}")


def _check_sizes(config: ModelConfig) -> None:
    sizes = ("hidden_size", "heads", "key_size", "value_size", "source_max_length")
    if config.kind != "attention":
        sizes = (*sizes, "layers", "feed_forward_size")
    _check_at_least(config, 1, sizes, "a size of at least 1")
    _check_at_least(
        config,
        0,
        ("source_vocabulary", "segments", "tasks", "position_offset", "embedding_size", "classes", *_DECODER_SIZES),
        "0 or more",
    )


def _check_processes(config: ModelConfig) -> None:
    for name in ("embedding_process", "pre_process", "post_process", "final_process"):
        commands = getattr(config, name)
        accepted = "adn" if name == "post_process" else "dn"  # only a sublayer has a residual to add
        # Article 002 drops out twice in a row, after the positions and on the sum.
        if not set(commands) <= set(accepted) or any(commands.count(c) > (2 if c == "d" else 1) for c in accepted):
            meanings = ", ".join(f"{command!r} {_PROCESS_COMMANDS[command]}" for command in accepted)
            raise _refuse(name, commands, f"each at most once (d twice) of {meanings}")


def _check_inputs(config: ModelConfig) -> None:
    if config.source_vocabulary == 0:
        nothing_embedded = {"segments": 0, "tasks": 0, "positions": "none", "embedding_process": ""}
        nothing_embedded |= {"embedding_size": 0}
        _check_fields(config, nothing_embedded, "with source_vocabulary 0 nothing is embedded")
    if config.positions != "learned":
        _check_fields(config, {"position_offset": 0}, "only a learned table has unused rows")
    if config.positions == "none":
        _check_fields(config, {"positions_skip_padding": False}, "there are no positions")
    if config.embedding_size == config.hidden_size:
        raise _refuse("embedding_size", config.embedding_size, "0: embeddings of the hidden size are not projected")
    if config.pad_id is not None and not 0 <= config.pad_id < config.source_vocabulary:
        raise _refuse("pad_id", config.pad_id, f"null, or an id below source_vocabulary {config.source_vocabulary}")


def _check_arithmetic(config: ModelConfig) -> None:
    for name in ("hidden_size", "embedding_size"):
        if config.norm == "scalar_layer_norm" and getattr(config, name) == 1:
            raise _refuse(name, 1, f"at least 2: the scalar norm divides by {name} - 1")
    if config.norm == "scalar_layer_norm":
        always = {"norm_bias": True, "final_norm_bias": True}
        _check_fields(config, always, "the scalar norm always has a bias")
    if "n" not in config.final_process:
        _check_fields(config, {"final_norm_bias": True}, "there is no final norm")
    if not 0 < config.norm_eps < 1:
        raise _refuse("norm_eps", config.norm_eps, "a number between 0 and 1")
    for name in DROPOUT_RATES:
        if not 0 <= getattr(config, name) < 1:
            raise _refuse(name, getattr(config, name), "a rate from 0 to below 1")
    if config.masking == "exclude":
        if config.masking_value is not None:
            raise _refuse("masking_value", config.masking_value, "null: masking 'exclude' needs no value")
    elif config.masking_value is None or not -sys.float_info.max <= config.masking_value < 0:
        raise _refuse("masking_value", config.masking_value, f"a finite negative number, to {config.masking}")


def _check_heads(config: ModelConfig) -> None:
    heads = config.heads_on_top
    if "masked_lm" in heads and not config.source_vocabulary:
        raise _refuse("heads_on_top", heads, "no masked_lm: with source_vocabulary 0 there are no tokens to predict")
    for head in ("next_sentence", "sequence_classifier"):
        if head in heads and "pooler" not in heads:
            raise _refuse("heads_on_top", heads, f"pooler as well, because {head} reads it")
    if "pooler" not in heads:
        _check_fields(config, {"pooler_activation": "tanh"}, "there is no pooler")
    classifies = "sequence_classifier" in heads or "token_classifier" in heads
    if classifies != bool(config.classes):
        expected = "1 or more, the number of classes" if classifies else "0: there is no classifier"
        raise _refuse("classes", config.classes, expected)
    if ("sentence_embedding" in heads) != (config.sentence_pooling != "none"):
        expected = "mean, cls or max" if "sentence_embedding" in heads else "'none': there is no sentence_embedding"
        raise _refuse("sentence_pooling", config.sentence_pooling, expected)
    if "sentence_embedding" not in heads:
        nothing_pooled = {"sentence_layers": (), "sentence_normalized": False}
        _check_fields(config, nothing_pooled, "there is no sentence_embedding")
    if config.tied_embeddings and "masked_lm" not in heads:
        raise _refuse("tied_embeddings", True, "false: only the masked_lm head can be tied, and it is missing")


def _check_decoder(config: ModelConfig) -> None:
    _check_at_least(
        config, 1, ("decoder_layers", "target_max_length"), "at least 1: kind encoder_decoder has a decoder"
    )
    absent = {"segments": 0, "tasks": 0, "positions_skip_padding": False, "embedding_size": 0}
    _check_fields(config, absent, "kind encoder_decoder does not support it")
    if not config.source_vocabulary:
        only_tokens = {"target_vocabulary": 0, "shared_embeddings": False, "start_id": None, "end_id": None}
        reason = "with source_vocabulary 0, encoder and decoder read vectors"
        _check_fields(config, {**only_tokens, "heads_on_top": ()}, reason)
    elif not config.target_vocabulary:
        raise _refuse("target_vocabulary", 0, "at least 1: with a source_vocabulary, the decoder reads tokens as well")
    elif not set(config.heads_on_top) <= set(DECODER_HEADS) or len(config.heads_on_top) != 1:
        raise _refuse("heads_on_top", config.heads_on_top, f"one of {', '.join(DECODER_HEADS)} on a decoder")
    if config.normalize_memory and "n" not in config.pre_process:
        raise _refuse("normalize_memory", True, "false: it uses the norm of pre_process, which has none")
    if config.shared_embeddings:
        for size in ("max_length", "vocabulary"):
            if (target_size := getattr(config, f"target_{size}")) != getattr(config, f"source_{size}"):
                raise _refuse(f"target_{size}", target_size, f"the source_{size}, because both share a table")
    for name in ("pad_id", "start_id", "end_id"):
        value = getattr(config, name)
        if value is not None and not 0 <= value < config.target_vocabulary:
            raise _refuse(name, value, f"null, or an id below target_vocabulary {config.target_vocabulary}")


def _check_no_decoder(config: ModelConfig) -> None:
    absent = {"decoder_layers": 0, "target_vocabulary": 0, "shared_embeddings": False, "normalize_memory": False}
    absent |= {"start_id": None, "end_id": None}
    if config.kind == "encoder":
        absent["target_max_length"] = 0
    _check_fields(config, absent, f"kind {config.kind} has no decoder")
    if set(config.heads_on_top) & set(DECODER_HEADS):
        raise _refuse("heads_on_top", config.heads_on_top, "heads of an encoder, not of a decoder")


def _check_attention_alone(config: ModelConfig) -> None:
    absent = {"layers": 0, "feed_forward_size": 0, "source_vocabulary": 0, "heads_on_top": ()}
    absent |= dict.fromkeys(("pre_process", "post_process", "final_process"), "")
    absent |= {"feed_forward_bias": True, "norm_bias": True}
    _check_fields(config, absent, "kind attention has no layers and no heads on top")
    _check_at_least(config, 1, ("target_max_length",), "at least 1: the longest row of queries")
