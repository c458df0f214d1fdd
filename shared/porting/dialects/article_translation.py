"""Dialect ``article-translation``: the state dict of article 000, an encoder-decoder that translates."""

from .article import article
from .table import Table, attention

_PROJECTIONS = ("fc_Q", "fc_K", "fc_V", "out_fc")
_ENCODER, _DECODER = "encoder.layer_{first_is_l}", "decoder.layer_{count}"
TABLE = Table(
    "article-translation",
    {
        "embeddings.token": "embed_x.embed",
        "target_embeddings.token": "embed_y.embed",
        "encoder.layers.N.pre_attention.norm": f"{_ENCODER}.mh.norm",
        **attention("encoder.layers.N.attention", f"{_ENCODER}.mh.", _PROJECTIONS),
        "encoder.layers.N.pre_feed_forward.norm": f"{_ENCODER}.fc.norm",
        "encoder.layers.N.feed_forward.inner": f"{_ENCODER}.fc.fc.0",
        "encoder.layers.N.feed_forward.output": f"{_ENCODER}.fc.fc.2",
        "decoder.layers.N.pre_self_attention.norm": f"{_DECODER}.mhl.norm",
        **attention("decoder.layers.N.self_attention", f"{_DECODER}.mhl.", _PROJECTIONS),
        "decoder.layers.N.pre_cross_attention.norm": f"{_DECODER}.mh2.norm",
        **attention("decoder.layers.N.cross_attention", f"{_DECODER}.mh2.", _PROJECTIONS),
        "decoder.layers.N.pre_feed_forward.norm": f"{_DECODER}.fc.norm",
        "decoder.layers.N.feed_forward.inner": f"{_DECODER}.fc.fc.0",
        "decoder.layers.N.feed_forward.output": f"{_DECODER}.fc.fc.2",
        "heads.logits": "fc_out",
    },
)

DIALECT = article("000", "translation", TABLE, {"embed_x.pe": "source_max_length", "embed_y.pe": "target_max_length"})
