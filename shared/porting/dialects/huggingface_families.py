"""The families of the dialect ``huggingface``: model types that share tensor names and configuration fields.

To add a family, define a ``Family``, add it to ``FAMILIES``, and extend ``family_for``. Names were read from
transformers 5.23.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from triglot.shared.model.config import Activation, Head, ModelConfig

from .table import Table, attention

# Field of ModelConfig -> field of config.json.
_SIZES = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "feed_forward_size": "intermediate_size",
    "source_vocabulary": "vocab_size",
    "source_max_length": "max_position_embeddings",
}
NUMBERS = {
    "norm_eps": "layer_norm_eps",
    "residual_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "gelu_python": "gelu",  # its old name
}
# Fields that all families have in common.
_COMMON = {
    "positions": "learned",
    "embedding_process": "nd",
    "pre_process": "",
    "post_process": "dan",
    "final_process": "",
}
_STYLE = Table("huggingface", {})
_BODY = ("embeddings.", "embeddings_project.", "encoder.", "transformer.", "pooler.")


@dataclass(frozen=True)
class Family:
    """Models with the same names.

    Attributes:
        model_types: each ``model_type`` of config.json -> the prefix of its class names.
        prefix: what task models put before the names of the body, not before those of their heads; None: the model
            type.
        modules: the names of the body and of the heads; see ``Table``.
        pooler_of_classifier: the pooler's name in a model with a sequence classifier, if it differs there.
        shown_by: each head -> a tensor whose presence shows it.
        marks: prefixes of tensor names that only this family has.
        decoder, bias: the table and the bias of the masked_lm head.
        duplicate_bias: a further copy of that bias.
        sizes, numbers, activation: fields of ``ModelConfig`` -> those of config.json.
        fixed: the fields of a configuration that are the same in all models.
        activations: the values of the activation's field -> the activations of ``ModelConfig``.
        exact_heads: the heads that always use the exact GELU, whatever the activation of the layers.
        pooler_activation: the activation of the pooler.
        pad_offset: positions begin after the pad id.
        style: a table without modules, which has the layout and the ends of names.
        pads: whether a configuration needs a pad id.
        needs: heads -> the head without which the library has no class for them.
        pre_training: sets of heads -> the end of the class that has exactly these.
        repeats: whether a file repeats a tied decoder, and in any case the bias.
    """

    model_types: Mapping[str, str]
    modules: Mapping[str, str]
    shown_by: Mapping[Head, str]
    marks: tuple[str, ...]
    decoder: str
    bias: str
    duplicate_bias: str = ""
    prefix: str | None = None
    pooler_of_classifier: str = ""
    sizes: Mapping[str, str] = field(default_factory=lambda: _SIZES | {"segments": "type_vocab_size"})
    numbers: Mapping[str, str] = field(default_factory=lambda: NUMBERS)
    activation: str = "hidden_act"
    activations: Mapping[str, Activation] = field(default_factory=lambda: _ACTIVATIONS)
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    exact_heads: tuple[Head, ...] = ()
    pooler_activation: str = "tanh"
    pad_offset: bool = False
    pads: bool = False
    needs: Mapping[Head, Head] = field(default_factory=dict[Head, Head])
    pre_training: Mapping[frozenset[str], str] = field(default_factory=dict[frozenset[str], str])
    style: Table = _STYLE
    repeats: bool = False

    @property
    def name(self) -> str:
        """The first model type."""
        return next(iter(self.model_types))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a configuration that all models of the family share."""
        return {**_COMMON, **self.fixed}

    def table(self, heads: Collection[str]) -> Table:
        """Return the names of a model with these heads."""
        modules = {
            path: name
            for path, name in self.modules.items()
            if not path.startswith("heads.") or path.split(".")[1] in heads
        }
        if self.pooler_of_classifier and "sequence_classifier" in heads:
            modules["heads.pooler"] = self.pooler_of_classifier
        return replace(self.style, modules=modules)

    @property
    def token_table(self) -> str:
        """The name of the table of tokens."""
        return self.table(()).name("embeddings.token.weight", "embedding")

    def prefix_of(self, model_type: str) -> str:
        """Return what a task model puts before the names of its body."""
        return f"{model_type if self.prefix is None else self.prefix}."


def is_of_body(name: str) -> bool:
    """Return whether a tensor belongs to the body of a model; ``name`` has no prefix."""
    return name.startswith(_BODY)


_LAYER = "encoder.layer.{index}"
_BODY_OF_BERT = {
    "embeddings.token": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.segment": "embeddings.token_type_embeddings",
    "embeddings.process.norm": "embeddings.LayerNorm",
    **attention(
        "encoder.layers.N.attention",
        f"{_LAYER}.attention.",
        ("self.query", "self.key", "self.value", "output.dense"),
    ),
    "encoder.layers.N.post_attention.norm": f"{_LAYER}.attention.output.LayerNorm",
    "encoder.layers.N.feed_forward.inner": f"{_LAYER}.intermediate.dense",
    "encoder.layers.N.feed_forward.output": f"{_LAYER}.output.dense",
    "encoder.layers.N.post_feed_forward.norm": f"{_LAYER}.output.LayerNorm",
}

BERT = Family(
    model_types={"bert": "Bert", "ernie": "Ernie"},
    modules={
        **_BODY_OF_BERT,
        "embeddings.task": "embeddings.task_type_embeddings",
        "heads.pooler": "pooler.dense",
        "heads.masked_lm.transform": "cls.predictions.transform.dense",
        "heads.masked_lm.norm": "cls.predictions.transform.LayerNorm",
        "heads.masked_lm.decoder": "cls.predictions.decoder",
        "heads.masked_lm": "cls.predictions",
        "heads.next_sentence": "cls.seq_relationship",
        "heads.sequence_classifier": "classifier",
        "heads.token_classifier": "classifier",
    },
    shown_by={
        "pooler": "pooler.dense.weight",
        "masked_lm": "cls.predictions.transform.dense.weight",
        "next_sentence": "cls.seq_relationship.weight",
        "sequence_classifier": "classifier.weight",
        "token_classifier": "classifier.weight",
    },
    marks=("bert.", "ernie.", "cls.", "embeddings.task_type_embeddings."),
    decoder="cls.predictions.decoder.weight",
    bias="cls.predictions.bias",
    duplicate_bias="cls.predictions.decoder.bias",
    pre_training={
        frozenset({"pooler", "masked_lm"}): "ForPreTraining",
        frozenset({"pooler", "masked_lm", "next_sentence"}): "ForPreTraining",
    },
)

ROBERTA = Family(
    model_types={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    prefix="roberta",
    modules={
        **_BODY_OF_BERT,
        "heads.pooler": "pooler.dense",
        "heads.masked_lm.transform": "lm_head.dense",
        "heads.masked_lm.norm": "lm_head.layer_norm",
        "heads.masked_lm.decoder": "lm_head.decoder",
        "heads.masked_lm": "lm_head",
        "heads.sequence_classifier": "classifier.out_proj",
        "heads.token_classifier": "classifier",
    },
    pooler_of_classifier="classifier.dense",
    shown_by={
        "pooler": "pooler.dense.weight",
        "masked_lm": "lm_head.dense.weight",
        "sequence_classifier": "classifier.out_proj.weight",
        "token_classifier": "classifier.weight",
    },
    marks=("roberta.", "lm_head."),
    decoder="lm_head.decoder.weight",
    bias="lm_head.bias",
    duplicate_bias="lm_head.decoder.bias",
    fixed={"masking": "exclude", "positions_skip_padding": True},
    exact_heads=("masked_lm",),
    pad_offset=True,
    pads=True,
)

_DISTILBERT_LAYER = "transformer.layer.{index}"
DISTILBERT = Family(
    model_types={"distilbert": "DistilBert"},
    modules={
        "embeddings.token": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.process.norm": "embeddings.LayerNorm",
        **attention(
            "encoder.layers.N.attention",
            f"{_DISTILBERT_LAYER}.attention.",
            ("q_lin", "k_lin", "v_lin", "out_lin"),
        ),
        "encoder.layers.N.post_attention.norm": f"{_DISTILBERT_LAYER}.sa_layer_norm",
        "encoder.layers.N.feed_forward.inner": f"{_DISTILBERT_LAYER}.ffn.lin1",
        "encoder.layers.N.feed_forward.output": f"{_DISTILBERT_LAYER}.ffn.lin2",
        "encoder.layers.N.post_feed_forward.norm": f"{_DISTILBERT_LAYER}.output_layer_norm",
        "heads.pooler": "pre_classifier",
        "heads.masked_lm.transform": "vocab_transform",
        "heads.masked_lm.norm": "vocab_layer_norm",
        "heads.masked_lm.decoder": "vocab_projector",
        "heads.masked_lm": "vocab_projector",
        "heads.sequence_classifier": "classifier",
        "heads.token_classifier": "classifier",
    },
    shown_by={
        "pooler": "pre_classifier.weight",
        "masked_lm": "vocab_transform.weight",
        "sequence_classifier": "pre_classifier.weight",
        "token_classifier": "classifier.weight",
    },
    marks=("distilbert.", "transformer.layer.", "vocab_"),
    decoder="vocab_projector.weight",
    bias="vocab_projector.bias",
    sizes={
        "hidden_size": "dim",
        "layers": "n_layers",
        "heads": "n_heads",
        "feed_forward_size": "hidden_dim",
        "source_vocabulary": "vocab_size",
        "source_max_length": "max_position_embeddings",
    },
    numbers={"residual_dropout": "dropout", "attention_dropout": "attention_dropout"},
    activation="activation",
    fixed={"masking": "exclude", "norm_eps": 1e-12},
    pooler_activation="relu",
)

ELECTRA = Family(
    model_types={"electra": "Electra"},
    modules={
        **_BODY_OF_BERT,
        "embeddings.projection": "embeddings_project",
        "heads.pooler": "classifier.dense",
        "heads.masked_lm.transform": "generator_predictions.dense",
        "heads.masked_lm.norm": "generator_predictions.LayerNorm",
        "heads.masked_lm.decoder": "generator_lm_head",
        "heads.masked_lm": "generator_lm_head",
        "heads.sequence_classifier": "classifier.out_proj",
        "heads.token_classifier": "classifier",
        "heads.replaced_token.transform": "discriminator_predictions.dense",
        "heads.replaced_token.output": "discriminator_predictions.dense_prediction",
    },
    shown_by={
        "pooler": "classifier.dense.weight",
        "masked_lm": "generator_predictions.dense.weight",
        "sequence_classifier": "classifier.out_proj.weight",
        "token_classifier": "classifier.weight",
        "replaced_token": "discriminator_predictions.dense.weight",
    },
    marks=("electra.", "embeddings_project.", "generator_", "discriminator_"),
    decoder="generator_lm_head.weight",
    bias="generator_lm_head.bias",
    sizes={**_SIZES, "segments": "type_vocab_size", "embedding_size": "embedding_size"},
    fixed={"masking": "exclude"},
    exact_heads=("masked_lm",),
    pooler_activation="gelu",
)

FAMILIES = (BERT, ROBERTA, DISTILBERT, ELECTRA)


def family_for(config: ModelConfig) -> str:
    """Return the name of the family that has the special features of ``config``."""
    if config.positions_skip_padding:
        return ROBERTA.name
    if config.embedding_size or "replaced_token" in config.heads_on_top or config.pooler_activation == "gelu":
        return ELECTRA.name
    return BERT.name if config.segments else DISTILBERT.name
