"""Dialect ``article-prenorm``: the state dict of article 002, a pre-norm encoder-decoder with shared embeddings."""

from .article import article
from .table import Table, attention

_PROJECTIONS = ("W_q", "W_k", "W_v", "W_o")
_ENCODER, _DECODER = (f"transformer.{stack}.layers.{{index}}" for stack in ("encoder", "decoder"))
TABLE = Table(
    "article-prenorm",
    {
        "embeddings.token": "transformer.wte",
        "encoder.layers.N.pre_attention.norm": f"{_ENCODER}.norm_1",
        **attention("encoder.layers.N.attention", f"{_ENCODER}.attention.", _PROJECTIONS),
        "encoder.layers.N.pre_feed_forward.norm": f"{_ENCODER}.norm_2",
        "encoder.layers.N.feed_forward.inner": f"{_ENCODER}.FFN.layer_1",
        "encoder.layers.N.feed_forward.output": f"{_ENCODER}.FFN.layer_2",
        "encoder.final.norm": "transformer.encoder.norm",
        "decoder.layers.N.pre_self_attention.norm": f"{_DECODER}.norm_1",
        **attention("decoder.layers.N.self_attention", f"{_DECODER}.attention_masked.", _PROJECTIONS),
        "decoder.layers.N.pre_cross_attention.norm": f"{_DECODER}.norm_2",
        **attention("decoder.layers.N.cross_attention", f"{_DECODER}.attention_nomask.", _PROJECTIONS),
        "decoder.layers.N.pre_feed_forward.norm": f"{_DECODER}.norm_3",
        "decoder.layers.N.feed_forward.inner": f"{_DECODER}.ffn.layer_1",
        "decoder.layers.N.feed_forward.output": f"{_DECODER}.ffn.layer_2",
        "decoder.final.norm": "transformer.decoder.norm",
        "heads.logits": "lm_head",
    },
    norm_scale=".gamma",
    norm_bias=".beta",
)

DIALECT = article("002", "prenorm", TABLE, {"transformer.wpe.pe": "source_max_length"})
