"""Dialect ``huggingface-flax``: BERT, RoBERTa, XLM-R, DistilBERT and ELECTRA as transformers 4 stores them for Flax.

transformers 5 cannot read these files. A model is a folder with ``config.json`` and ``flax_model.msgpack``, or
the bare file. The names are those of the dialect ``huggingface`` with Flax's words at the end. Linear weights are
(in, out), including the decoder of the masked_lm head. Names were read from transformers 4.55, ``modeling_flax_*.py``.
"""

from dataclasses import replace

from triglot.shared.model.schema import MASKED_LM_TABLE
from triglot.shared.porting.source import CONFIG_FILE

from .huggingface import dialect_of
from .huggingface_families import FAMILIES, Family, family_for
from .library import Library
from .table import Table

_STYLE = Table(
    "huggingface-flax",
    {},
    weight=".kernel",
    table=".embedding",
    norm_scale=".scale",
    transposed=False,
    turned=(MASKED_LM_TABLE,),  # a linear layer of its own here, whose kernel is (hidden, vocabulary)
)


def _flax(family: Family) -> Family:
    """Return the family with Flax's names. Flax had no ERNIE, no CamemBERT, and no second bias of an untied decoder."""
    decoder = family.decoder.replace(".weight", ".kernel")
    return replace(
        family,
        model_types={name: start for name, start in family.model_types.items() if name not in ("ernie", "camembert")},
        modules={
            **{path: name for path, name in family.modules.items() if path not in _NOT_IN_FLAX},
            MASKED_LM_TABLE: decoder,
        },
        shown_by={head: name.replace(".weight", ".kernel") for head, name in family.shown_by.items()},
        decoder=decoder,
        duplicate_bias="",
        exact_heads=("masked_lm",) if family.name == "roberta" else (),
        style=_STYLE,
    )


_NOT_IN_FLAX = ("embeddings.task", "heads.masked_lm.decoder")
_LIBRARY = Library(
    "huggingface-flax",
    tuple(_flax(family) for family in FAMILIES),
    family_for,
    "flax_model.msgpack",
)
DIALECT = dialect_of(_LIBRARY, f"a folder with {CONFIG_FILE} and {_LIBRARY.weights_file}, or bare weights")
