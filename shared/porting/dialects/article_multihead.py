"""Dialect ``article-multihead``: the state dict of article 004, one multi-head attention."""

from .article import article
from .table import Table

TABLE = Table(
    "article-multihead",
    {
        "attention.query.weight": "q_proj_weight",
        "attention.key.weight": "k_proj_weight",
        "attention.value.weight": "v_proj_weight",
        "attention.output": "out_proj",
    },
)

DIALECT = article("004", "multihead", TABLE)
