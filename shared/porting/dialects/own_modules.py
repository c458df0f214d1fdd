"""Dialects ``torch``, ``paddle`` and ``nnx``: the state of Triglot's own modules, for those who use a module alone.

Names are canonical in all three; Flax NNX ends them with its own words. Linear weights are (out, in) in PyTorch only.
Sizes and heads on top show in the tensors, and the user has to give the rest of the configuration.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triglot.shared.model.config import DECODER_HEADS, Head, ModelConfig
from triglot.shared.model.schema import MASKED_LM_TABLE, Role
from triglot.shared.porting import containers
from triglot.shared.porting.containers import npz, orbax, paddle, safetensors, torch
from triglot.shared.porting.source import Source

from .state_dict import StateDict
from .table import Table

_ASKED = ("heads", "activation", "norm_eps", "masking", "positions", "pre_process", "post_process", "final_process")
_RANDOM = re.compile(r"(?:^|\.)rngs\.(?:count|key)$")
_HEADS: dict[Head, str] = {
    **{head: f"heads.{head}.bias" for head in (*DECODER_HEADS, "pooler")},
    "masked_lm": "heads.masked_lm.transform.bias",
    "next_sentence": "heads.next_sentence.bias",
    "sequence_classifier": "heads.sequence_classifier.bias",
    "token_classifier": "heads.token_classifier.bias",
    "replaced_token": "heads.replaced_token.output.bias",
}  # A sentence_embedding may have no tensors, so the user has to name it.


@dataclass(frozen=True)
class CanonicalTable(Table):
    """The canonical names. ``leaves`` replaces the last part of a name, by role."""

    leaves: Mapping[Role, str] = field(default_factory=dict[Role, str])

    def name(self, canonical: str, role: Role) -> str:
        """See ``Table.name``."""
        module, leaf = canonical.rsplit(".", 1)
        return f"{module}.{self.leaves.get(role, leaf)}"

    def layers(self, stack: str, names: Iterable[str]) -> int:
        """See ``Table.layers``."""
        numbers = (re.match(rf"{stack}\.layers\.(\d{{1,6}})\.", name) for name in names)
        return max((int(number[1]) + 1 for number in numbers if number), default=0)


@dataclass(frozen=True)
class OwnModule(StateDict):
    """The state of one of our modules. ``formats``: the files that it may come in."""

    formats: tuple[containers.Format, ...] = ()

    def sign(self, source: Source) -> str:
        """See ``StateDict.sign``. PyTorch and PaddlePaddle have the same names, so their own formats decide."""
        if source.is_folder or source.is_neutral or containers.find(source.path) not in self.formats:
            return ""
        return super().sign(source)

    def ignored(self, tensors: Collection[str]) -> dict[str, str]:
        """See ``StateDict.ignored``. A state of NNX holds the random numbers of its dropouts too."""
        return {name: "it is the state of a random number generator" for name in tensors if _RANDOM.search(name)}

    def shown(self, names: Collection[str]) -> dict[str, Any]:
        """See ``StateDict.shown``."""
        alone = any(name.startswith("attention.") for name in names)
        pair = any(name.startswith("decoder.") for name in names)
        heads = [head for head, bias in _HEADS.items() if bias in names]
        return {
            **dict.fromkeys(("source_vocabulary", "layers", "feed_forward_size"), 0),  # unless their tensors are there
            "kind": "attention" if alone else "encoder_decoder" if pair else "encoder",
            "heads_on_top": heads,
            "tied_embeddings": "masked_lm" in heads and self.table.name(MASKED_LM_TABLE, "embedding") not in names,
            "shared_embeddings": pair
            and any(name.startswith("embeddings.") for name in names)
            and not any(name.startswith("target_embeddings.") for name in names),
        }

    def unanswered(self, given: Mapping[str, Any], names: Collection[str]) -> list[str]:
        """See ``StateDict.unanswered``. Some of these fields have a default, but not every model has that value."""
        asked = [*_ASKED]
        if self.table.name("heads.pooler.weight", "linear_weight") in names:
            asked.append("pooler_activation")
        if self.table.name("embeddings.token.weight", "embedding") in names:
            asked += ["embedding_scale", "embedding_process"]
        if self.table.name("embeddings.position.weight", "embedding") in names:
            asked += ["position_offset", "positions_skip_padding"]
        if any(name.startswith("decoder.") for name in names):
            asked.append("normalize_memory")
        if any("attention.output." in name for name in names):
            asked.append("attention_output_activation")
        if given.get("masking", "exclude") != "exclude":
            asked.append("masking_value")
        return [name for name in asked if name not in given]

    def check_expressible(self, config: ModelConfig) -> None:
        """See ``StateDict.check_expressible``. Our modules compute every model."""


def _own_module(class_name: str, formats: tuple[containers.Format, ...], table: CanonicalTable) -> OwnModule:
    return OwnModule(
        table,
        f"the state of {class_name}",
        {},
        f"expected the state of {class_name}; pass the configuration of this model (config=, or --config and --set on "
        "the command line)",
        formats=formats,
    )


TORCH = _own_module(
    "triglot.impls.pytorch.transformer.Transformer",
    (torch, safetensors, npz),
    CanonicalTable("torch", {}, transposed=True),
)
PADDLE = _own_module(
    "triglot.impls.paddlepaddle.transformer.Transformer",
    (paddle, safetensors, npz),
    CanonicalTable("paddle", {}, transposed=False),
)
NNX = _own_module(
    "triglot.impls.flax_nnx.transformer.Transformer",
    (*containers.BY_SUFFIX.values(), orbax),
    CanonicalTable("nnx", {}, transposed=False, leaves={"linear_weight": "kernel", "embedding": "embedding"}),
)
