"""Dialect ``article-annotated``: the state dict of article 003, the annotated encoder-decoder."""

from .article import article
from .table import Table, attention

_PROJECTIONS = ("w_q", "w_k", "w_v", "w_o")
_ENCODER, _DECODER = "encoder.layers.{index}", "decoder.layers.{index}"
TABLE = Table(
    "article-annotated",
    {
        "embeddings.token": "src_embed.embedding",
        "target_embeddings.token": "tgt_embed.embedding",
        "encoder.layers.N.pre_attention.norm": f"{_ENCODER}.residual_connections.0.norm",
        **attention("encoder.layers.N.attention", f"{_ENCODER}.self_attention_block.", _PROJECTIONS),
        "encoder.layers.N.pre_feed_forward.norm": f"{_ENCODER}.residual_connections.1.norm",
        "encoder.layers.N.feed_forward.inner": f"{_ENCODER}.feed_forward_block.linear_1",
        "encoder.layers.N.feed_forward.output": f"{_ENCODER}.feed_forward_block.linear_2",
        "encoder.final.norm": "encoder.norm",
        "decoder.layers.N.pre_self_attention.norm": f"{_DECODER}.residual_connections.0.norm",
        **attention("decoder.layers.N.self_attention", f"{_DECODER}.self_attention_block.", _PROJECTIONS),
        "decoder.layers.N.pre_cross_attention.norm": f"{_DECODER}.residual_connections.1.norm",
        **attention("decoder.layers.N.cross_attention", f"{_DECODER}.cross_attention_block.", _PROJECTIONS),
        "decoder.layers.N.pre_feed_forward.norm": f"{_DECODER}.residual_connections.2.norm",
        "decoder.layers.N.feed_forward.inner": f"{_DECODER}.feed_forward_block.linear_1",
        "decoder.layers.N.feed_forward.output": f"{_DECODER}.feed_forward_block.linear_2",
        "decoder.final.norm": "decoder.norm",
        "heads.log_probabilities": "projection_layer.proj",
    },
    norm_scale=".alpha",
)

DIALECT = article("003", "annotated", TABLE, {"src_pos.pe": "source_max_length", "tgt_pos.pe": "target_max_length"})
