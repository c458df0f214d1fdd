"""The catalogue of bugs, by name. Each module holds those of one part of the model."""

from collections.abc import Collection, Mapping, Sequence

from triglot.shared.model.config import ModelConfig
from triglot.shared.model.schema import named_values

from . import attention, decoder, embeddings, generation, heads, layers, model, sentence_embedding, training

_MODULES = (embeddings, attention, layers, decoder, heads, sentence_embedding, model, generation, training)
BUGS = {name: bug for module in _MODULES for name, bug in module.BUGS.items()}

# Bugs that change no result of a public method by more than rounding does, and why.
INVISIBLE = {
    "bias of the keys missing": "it adds the same number to all scores of a query, and a softmax ignores that",
    "masking value 1 % off": "it matters only if a masked score comes as close to the others as that",
    "attention weights of a row without any allowed token": "the methods refuse such a row, or zero its result",
    "shortest length 1e-6 for 1e-12": "a pooled vector is so short only if its tokens cancel to twelve digits",
    "epsilon under the root": "beside positions of size 1, epsilon 1e-6 changes a deviation by 7e-7",
}

# Bugs that 16 bits are too coarse to show with every seed: they change less than the roundings of every value do. Each
# was missed with at least one of two seeds in PyTorch. (Scores rounded to bfloat16 are no bug in bfloat16, nor are
# weights rounded to float16 in float16.)
BLIND: Mapping[str, Sequence[str]] = {
    "bfloat16": (
        "attention weights of a row without any allowed token",
        "attention bias limited",
        "scale 0.35 for 8^-0.5",
        "scores scaled 1 % too much",
        "scores rounded to bfloat16",
        "tanh GELU for the exact GELU",
        "sigmoid GELU for the exact GELU",
        "target padding seen while decoding",
        "no causal mask while decoding",
        "cache overwritten at the first place",
        "cached values stale",
        "decoding stops with the first sentence",
    ),
    "float16": (
        "attention bias limited",
        "tanh GELU for the exact GELU",
        "weights rounded to float16 when loaded",
        "no causal mask while decoding",
        "shortest length 1e-6 for 1e-12",
    ),
}


def blind(dtype: str, config: ModelConfig, checks: Collection[str]) -> tuple[str, ...]:
    """Return the bugs for these kinds of check that ``dtype`` is too coarse to show, in heads that the model has."""
    return tuple(
        name
        for name in BLIND.get(dtype, ())
        if {*BUGS[name].checks} & {*checks}
        and (not BUGS[name].found_at.startswith("heads.") or BUGS[name].found_at in named_values(config))
    )
