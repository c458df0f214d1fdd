"""Dialects: how libraries name and lay out tensors, one file each. ``DIALECTS`` lists all of them by name.

To add a dialect, write a file with a ``DIALECT``, and list it here.
"""

from . import (
    article_annotated,
    article_dygraph,
    article_multihead,
    article_prenorm,
    article_translation,
    huggingface,
    neutral,
)

# Dialects that need not be named are tried in this order. Neutral accepts any file, so it comes after the others.
_MODULES = (huggingface, neutral)
_ARTICLES = (article_translation, article_dygraph, article_prenorm, article_annotated, article_multihead)
DIALECTS = {module.DIALECT.name: module.DIALECT for module in (*_MODULES, *_ARTICLES)}
