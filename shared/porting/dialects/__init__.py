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
    huggingface_flax,
    neutral,
    own_modules,
    paddlenlp,
    sentence_transformers,
    stock_transformer,
)

_ARTICLES = (article_translation, article_dygraph, article_prenorm, article_annotated, article_multihead)
_LISTED = (
    neutral.DIALECT,
    huggingface.DIALECT,
    huggingface_flax.DIALECT,
    paddlenlp.DIALECT,
    sentence_transformers.DIALECT,
    own_modules.TORCH.dialect,
    own_modules.PADDLE.dialect,
    own_modules.NNX.dialect,
    stock_transformer.TORCH.dialect,
    stock_transformer.PADDLE.dialect,
    *(module.DIALECT for module in _ARTICLES),
)
DIALECTS = {dialect.name: dialect for dialect in _LISTED}
