"""The recipes: named configurations of existing models. Each has a ``-tiny`` sibling for tests.

Sources: ``dygraph`` is the PaddlePaddle 1.7 encoder built on PrePostProcess commands (the ERNIE code), at the sizes
of BERT-base. ``bert-base`` is BERT-base uncased (Devlin et al. 2018). ``ernie-base`` is ERNIE 2.0 base, English.
``minilm`` is sentence-transformers/all-MiniLM-L6-v2. The others are the models of four articles.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from triglot.shared.errors import ConfigError, suggestion

from .config import ModelConfig

# What a user says about a configuration: the name of a recipe, all fields, or single ones.
ConfigOverride = str | ModelConfig | Mapping[str, Any] | None


def _sizes(*, hidden_size: int, layers: int, heads: int, feed_forward_size: int) -> dict[str, Any]:
    """Return the sizes of a model whose heads divide ``hidden_size``."""
    sizes = {"hidden_size": hidden_size, "layers": layers, "heads": heads, "feed_forward_size": feed_forward_size}
    return sizes | dict.fromkeys(("key_size", "value_size"), hidden_size // heads)


_DYGRAPH = ModelConfig(
    **_sizes(hidden_size=768, layers=12, heads=12, feed_forward_size=3072),
    source_vocabulary=0,
    source_max_length=512,
    positions="none",
    pre_process="n",
    post_process="da",
    final_process="n",
    norm_eps=1e-5,
    activation="gelu",
    masking="add",
    masking_value=-10000.0,
    residual_dropout=0.1,
    attention_dropout=0.1,
    feed_forward_dropout=0.1,
)

_BERT_BASE = ModelConfig(
    **_sizes(hidden_size=768, layers=12, heads=12, feed_forward_size=3072),
    source_vocabulary=30522,
    source_max_length=512,
    segments=2,
    positions="learned",
    pad_id=0,
    embedding_process="nd",
    pre_process="",
    post_process="dan",
    final_process="",
    norm_eps=1e-12,
    activation="gelu",
    masking="exclude",
    embedding_dropout=0.1,
    residual_dropout=0.1,
    attention_dropout=0.1,
    heads_on_top=("pooler",),
)

_ERNIE_BASE = replace(_BERT_BASE, segments=4, tasks=16, norm_eps=1e-5, masking="add", masking_value=-10000.0)

_MINILM = replace(_BERT_BASE, **_sizes(hidden_size=384, layers=6, heads=12, feed_forward_size=1536))

# Article 000: a toy translation. Pre-norm without a final norm; one norm serves query, key and value. The text says
# five encoder layers and builds three. Its sizes are hard-coded, so only length 50 works there; here any length up to
# 50 does.
_TRANSLATION = ModelConfig(
    kind="encoder_decoder",
    **_sizes(hidden_size=32, layers=3, heads=4, feed_forward_size=64),
    decoder_layers=3,
    source_vocabulary=39,
    source_max_length=50,
    target_vocabulary=39,
    target_max_length=50,
    positions="sinusoidal_per_dimension",
    normalize_memory=True,
    pad_id=2,
    start_id=0,
    end_id=1,
    pre_process="n",
    post_process="a",
    final_process="",
    norm_eps=1e-5,
    activation="relu",
    masking="exclude",
    attention_output_dropout=0.1,
    feed_forward_output_dropout=0.1,
    heads_on_top=("logits",),
    initializer="translation",
)

# Article 003: "Attention is all you need" step by step, at the sizes of the paper. The article computes its masks but
# never assigns them; here they are applied. It also leaves out the classes that hold the final norms.
_ANNOTATED = replace(
    _TRANSLATION,
    **_sizes(hidden_size=512, layers=6, heads=8, feed_forward_size=2048),
    decoder_layers=6,
    source_vocabulary=10000,
    target_vocabulary=10000,
    positions="sinusoidal",
    embedding_scale=True,
    normalize_memory=False,
    pad_id=None,
    start_id=None,
    end_id=None,
    embedding_process="d",
    post_process="da",
    final_process="n",
    norm="scalar_layer_norm",
    norm_eps=1e-6,
    masking="fill",
    masking_value=-1e9,
    embedding_dropout=0.1,
    residual_dropout=0.1,
    attention_dropout=0.1,
    attention_output_dropout=0.0,
    feed_forward_dropout=0.1,
    feed_forward_output_dropout=0.0,
    heads_on_top=("log_probabilities",),
    initializer="annotated",
)

# Article 002: pre-norm, a ReLU after each attention, and one table for both stacks, which read the same ids. The text
# states only six layers and a four times wider feed-forward; the other sizes are those of article 003. It calls its
# lower-triangular mask an upper one, has no padding mask, and adds the output of its position module, which includes
# the embeddings, to the embeddings; here the positions alone are added.
_PRENORM = replace(
    _ANNOTATED,
    embedding_scale=False,
    shared_embeddings=True,
    embedding_process="dd",
    norm="layer_norm",
    norm_eps=1e-5,
    attention_output_activation="relu",
    attention_dropout=0.0,
    heads_on_top=("logits",),
    initializer="prenorm",
)

# Article 004: multi-head attention as PyTorch 1.4 computes it, at the sizes of the paper. In the article's example of a
# padding mask True means "keep", but its code ignores where True; here True means "may attend", as everywhere.
_MULTIHEAD = ModelConfig(
    kind="attention",
    **_sizes(hidden_size=512, layers=0, heads=8, feed_forward_size=0),
    source_vocabulary=0,
    source_max_length=512,
    target_max_length=512,
    positions="none",
    pre_process="",
    post_process="",
    final_process="",
    norm_eps=1e-5,
    activation="relu",
    projection_bias=False,
    masking="exclude",
    initializer="multihead",
)

# Sizes that all differ, so that an axis mistaken for another shows as a wrong shape.
_TINY = _sizes(hidden_size=24, layers=2, heads=3, feed_forward_size=40)
_TINY_ENCODER = {**_TINY, "source_vocabulary": 101, "source_max_length": 37}
_TINY_DECODER = {**_TINY, "decoder_layers": 2, "target_vocabulary": 41, "target_max_length": 23}
_TINY_ATTENTION = _sizes(hidden_size=24, layers=0, heads=3, feed_forward_size=0)

_RECIPES: dict[str, ModelConfig] = {
    "translation": _TRANSLATION,
    "prenorm": _PRENORM,
    "annotated": _ANNOTATED,
    "multihead": _MULTIHEAD,
    "dygraph": _DYGRAPH,
    "bert-base": _BERT_BASE,
    "ernie-base": _ERNIE_BASE,
    "minilm": _MINILM,
    "translation-tiny": replace(_TRANSLATION, **_TINY_DECODER, source_max_length=19),
    "prenorm-tiny": replace(_PRENORM, **_TINY_DECODER, source_vocabulary=41, source_max_length=23),
    "annotated-tiny": replace(_ANNOTATED, **_TINY_DECODER, source_vocabulary=101, source_max_length=19),
    "multihead-tiny": replace(_MULTIHEAD, **_TINY_ATTENTION, source_max_length=37, target_max_length=29),
    "dygraph-tiny": replace(_DYGRAPH, **_TINY, source_max_length=37),
    "bert-base-tiny": replace(_BERT_BASE, **_TINY_ENCODER),
    "ernie-base-tiny": replace(_ERNIE_BASE, **_TINY_ENCODER),
    "minilm-tiny": replace(_MINILM, **_TINY_ENCODER),
}


def recipes() -> dict[str, ModelConfig]:
    """Return every recipe by name, as a new dictionary."""
    return dict(_RECIPES)


def recipe(name: str) -> ModelConfig:
    """Return the recipe ``name``.

    Raises:
        ConfigError: no recipe has that name.
    """
    if name not in _RECIPES:
        raise ConfigError(
            f"unknown recipe {name!r}; {suggestion(name, list(_RECIPES))}expected one of {', '.join(_RECIPES)}"
        )
    return _RECIPES[name]


def configured(fields: Mapping[str, Any], override: ConfigOverride) -> ModelConfig:
    """Return the configuration of ``fields``, as ``override`` corrects and completes it.

    A recipe or a whole configuration replaces all fields.

    Raises:
        ConfigError: a field is unknown, missing or wrong, or no recipe has that name.
    """
    if isinstance(override, ModelConfig):
        return override
    if isinstance(override, str):
        return recipe(override)
    if override is not None and not isinstance(override, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"config is a {type(override).__name__}; expected a recipe, a ModelConfig or fields by name")
    return ModelConfig.from_dict({**fields, **(override or {})})
