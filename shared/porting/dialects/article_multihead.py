"""Dialect ``article-multihead``: the state dict of article 004, one multi-head attention."""

from .article import Article
from .dialect import Table

TABLE = Table(
    "article-multihead",
    {
        "attention.query.weight": "q_proj_weight",
        "attention.key.weight": "k_proj_weight",
        "attention.value.weight": "v_proj_weight",
        "attention.output": "out_proj",
    },
)

DIALECT = Article("004", "multihead", TABLE, buffers={}).dialect
