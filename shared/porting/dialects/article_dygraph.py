"""Dialect ``article-dygraph``: the parameters of article 001, Paddle's encoder with commands around each sublayer.

The names are those of the parameters, not the paths of the attributes. They begin with the name of the encoder, which
is empty by default and "encoder" in ERNIE.
"""

from .article import article
from .state_dict import FREE_FIELDS
from .table import Table, attention

_PROJECTIONS = ("query_fc", "key_fc", "value_fc", "output_fc")
_LAYER = "_layer_{index}"
TABLE = Table(
    "article-dygraph",
    {
        "encoder.layers.N.pre_attention.norm": f"{_LAYER}_pre_att_layer_norm",
        **attention("encoder.layers.N.attention", f"{_LAYER}_multi_head_att_", _PROJECTIONS),
        "encoder.layers.N.post_attention.norm": f"{_LAYER}_post_att_layer_norm",
        "encoder.layers.N.pre_feed_forward.norm": f"{_LAYER}_pre_ffn_layer_norm",
        "encoder.layers.N.feed_forward.inner": f"{_LAYER}_ffn_fc_0",
        "encoder.layers.N.feed_forward.output": f"{_LAYER}_ffn_fc_1",
        "encoder.layers.N.post_feed_forward.norm": f"{_LAYER}_post_ffn_layer_norm",
        "encoder.final.norm": "post_encoder_layer_norm",
    },
    weight=".w_0",
    bias=".b_0",
    norm_scale="_scale",
    norm_bias="_bias",
    transposed=False,
)

DIALECT = article(
    "001",
    "dygraph",
    TABLE,
    asked=("heads", "activation"),  # the norms show the processes
    scope="encoder",
    # The processes and the activation are arguments there, and the mask is made by the caller.
    free=FREE_FIELDS | {"pre_process", "post_process", "final_process", "activation", "masking_value"},
    heads_divide_hidden_size=False,
)
