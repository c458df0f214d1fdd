"""Dialect ``article-multihead``: the state dict of article 004, one multi-head attention."""

from .article import Article

_NAMES = {
    "attention.query.weight": "q_proj_weight",
    "attention.key.weight": "k_proj_weight",
    "attention.value.weight": "v_proj_weight",
    "attention.output.weight": "out_proj.weight",
    "attention.output.bias": "out_proj.bias",
}

ARTICLE = Article("004", "multihead", _NAMES, buffers={})
DIALECT = ARTICLE.dialect
