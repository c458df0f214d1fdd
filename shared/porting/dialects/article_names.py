"""The names of the articles' own code: one table per dialect, canonical name -> theirs, a bijection.

``N`` in a canonical name is the number of a layer, from 0. In a name of theirs ``{index}`` is that number, ``{count}``
counts from 1, and ``{first_is_l}`` too, but the first is the letter l, as article 000 has it.
"""

import re
from collections.abc import Mapping

_LAYER = re.compile(r"\.layers\.(\d+)\.")


def native(table: Mapping[str, str], canonical: str) -> str | None:
    """The name of theirs for one parameter; None: the table has none."""
    found = _LAYER.search(canonical)
    theirs = table.get(_LAYER.sub(".layers.N.", canonical))
    if theirs is None or found is None:
        return theirs
    index = int(found[1])
    return theirs.format(index=index, count=index + 1, first_is_l=index + 1 if index else "l")


def _table(modules: Mapping[str, str], linear: Mapping[str, str], norm: Mapping[str, str]) -> dict[str, str]:
    """Every leaf of every module, of which the norms are known by their name."""
    return {
        f"{module}.{leaf}": theirs + their_leaf
        for module, theirs in modules.items()
        for leaf, their_leaf in (norm if module.endswith(".norm") else linear).items()
    }


_TORCH_LINEAR = {"weight": ".weight", "bias": ".bias"}
_PARTS = ("query", "key", "value", "output")


def _attention(path: str, theirs: str, parts: tuple[str, ...]) -> dict[str, str]:
    return {f"{path}.{part}": f"{theirs}{their_part}" for part, their_part in zip(_PARTS, parts, strict=True)}


_FC = ("fc_Q", "fc_K", "fc_V", "out_fc")
_ENCODER_000, _DECODER_000 = "encoder.layer_{first_is_l}", "decoder.layer_{count}"
TRANSLATION = _table(
    {
        "embeddings.token": "embed_x.embed",
        "target_embeddings.token": "embed_y.embed",
        "encoder.layers.N.pre_attention.norm": f"{_ENCODER_000}.mh.norm",
        **_attention("encoder.layers.N.attention", f"{_ENCODER_000}.mh.", _FC),
        "encoder.layers.N.pre_feed_forward.norm": f"{_ENCODER_000}.fc.norm",
        "encoder.layers.N.feed_forward.inner": f"{_ENCODER_000}.fc.fc.0",
        "encoder.layers.N.feed_forward.output": f"{_ENCODER_000}.fc.fc.2",
        "decoder.layers.N.pre_self_attention.norm": f"{_DECODER_000}.mhl.norm",
        **_attention("decoder.layers.N.self_attention", f"{_DECODER_000}.mhl.", _FC),
        "decoder.layers.N.pre_cross_attention.norm": f"{_DECODER_000}.mh2.norm",
        **_attention("decoder.layers.N.cross_attention", f"{_DECODER_000}.mh2.", _FC),
        "decoder.layers.N.pre_feed_forward.norm": f"{_DECODER_000}.fc.norm",
        "decoder.layers.N.feed_forward.inner": f"{_DECODER_000}.fc.fc.0",
        "decoder.layers.N.feed_forward.output": f"{_DECODER_000}.fc.fc.2",
        "heads.logits": "fc_out",
    },
    linear=_TORCH_LINEAR,
    norm={"scale": ".weight", "bias": ".bias"},
)

# The names of the parameters, not the paths of the attributes. They begin with the name of the encoder, which is empty
# by default. Where a norm stands is for the commands before and after each sublayer to say.
_LAYER_001 = "_layer_{index}"
DYGRAPH = _table(
    {
        "encoder.layers.N.pre_attention.norm": f"{_LAYER_001}_pre_att_layer_norm",
        **_attention(
            "encoder.layers.N.attention",
            f"{_LAYER_001}_multi_head_att_",
            ("query_fc", "key_fc", "value_fc", "output_fc"),
        ),
        "encoder.layers.N.post_attention.norm": f"{_LAYER_001}_post_att_layer_norm",
        "encoder.layers.N.pre_feed_forward.norm": f"{_LAYER_001}_pre_ffn_layer_norm",
        "encoder.layers.N.feed_forward.inner": f"{_LAYER_001}_ffn_fc_0",
        "encoder.layers.N.feed_forward.output": f"{_LAYER_001}_ffn_fc_1",
        "encoder.layers.N.post_feed_forward.norm": f"{_LAYER_001}_post_ffn_layer_norm",
        "encoder.final.norm": "post_encoder_layer_norm",
    },
    linear={"weight": ".w_0", "bias": ".b_0"},
    norm={"scale": "_scale", "bias": "_bias"},
)

_W = ("W_q", "W_k", "W_v", "W_o")
_ENCODER_002, _DECODER_002 = (f"transformer.{stack}.layers.{{index}}" for stack in ("encoder", "decoder"))
PRENORM = _table(
    {
        "embeddings.token": "transformer.wte",
        "encoder.layers.N.pre_attention.norm": f"{_ENCODER_002}.norm_1",
        **_attention("encoder.layers.N.attention", f"{_ENCODER_002}.attention.", _W),
        "encoder.layers.N.pre_feed_forward.norm": f"{_ENCODER_002}.norm_2",
        "encoder.layers.N.feed_forward.inner": f"{_ENCODER_002}.FFN.layer_1",
        "encoder.layers.N.feed_forward.output": f"{_ENCODER_002}.FFN.layer_2",
        "encoder.final.norm": "transformer.encoder.norm",
        "decoder.layers.N.pre_self_attention.norm": f"{_DECODER_002}.norm_1",
        **_attention("decoder.layers.N.self_attention", f"{_DECODER_002}.attention_masked.", _W),
        "decoder.layers.N.pre_cross_attention.norm": f"{_DECODER_002}.norm_2",
        **_attention("decoder.layers.N.cross_attention", f"{_DECODER_002}.attention_nomask.", _W),
        "decoder.layers.N.pre_feed_forward.norm": f"{_DECODER_002}.norm_3",
        "decoder.layers.N.feed_forward.inner": f"{_DECODER_002}.ffn.layer_1",
        "decoder.layers.N.feed_forward.output": f"{_DECODER_002}.ffn.layer_2",
        "decoder.final.norm": "transformer.decoder.norm",
        "heads.logits": "lm_head",
    },
    linear=_TORCH_LINEAR,
    norm={"scale": ".gamma", "bias": ".beta"},
)

_SMALL_W = ("w_q", "w_k", "w_v", "w_o")
_ENCODER_003, _DECODER_003 = "encoder.layers.{index}", "decoder.layers.{index}"
ANNOTATED = _table(
    {
        "embeddings.token": "src_embed.embedding",
        "target_embeddings.token": "tgt_embed.embedding",
        "encoder.layers.N.pre_attention.norm": f"{_ENCODER_003}.residual_connections.0.norm",
        **_attention("encoder.layers.N.attention", f"{_ENCODER_003}.self_attention_block.", _SMALL_W),
        "encoder.layers.N.pre_feed_forward.norm": f"{_ENCODER_003}.residual_connections.1.norm",
        "encoder.layers.N.feed_forward.inner": f"{_ENCODER_003}.feed_forward_block.linear_1",
        "encoder.layers.N.feed_forward.output": f"{_ENCODER_003}.feed_forward_block.linear_2",
        "encoder.final.norm": "encoder.norm",
        "decoder.layers.N.pre_self_attention.norm": f"{_DECODER_003}.residual_connections.0.norm",
        **_attention("decoder.layers.N.self_attention", f"{_DECODER_003}.self_attention_block.", _SMALL_W),
        "decoder.layers.N.pre_cross_attention.norm": f"{_DECODER_003}.residual_connections.1.norm",
        **_attention("decoder.layers.N.cross_attention", f"{_DECODER_003}.cross_attention_block.", _SMALL_W),
        "decoder.layers.N.pre_feed_forward.norm": f"{_DECODER_003}.residual_connections.2.norm",
        "decoder.layers.N.feed_forward.inner": f"{_DECODER_003}.feed_forward_block.linear_1",
        "decoder.layers.N.feed_forward.output": f"{_DECODER_003}.feed_forward_block.linear_2",
        "decoder.final.norm": "decoder.norm",
        "heads.log_probabilities": "projection_layer.proj",
    },
    linear=_TORCH_LINEAR,
    norm={"scale": ".alpha", "bias": ".bias"},
)

MULTIHEAD = {
    "attention.query.weight": "q_proj_weight",
    "attention.key.weight": "k_proj_weight",
    "attention.value.weight": "v_proj_weight",
    "attention.output.weight": "out_proj.weight",
    "attention.output.bias": "out_proj.bias",
}
