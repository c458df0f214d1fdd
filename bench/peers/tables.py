"""The names of a BERT's tensors in the stock encoders."""

from collections.abc import Mapping

from triglot.shared.porting.dialects.table import Table

_OUTSIDE_LAYERS = {
    "embeddings.token": "token",
    "embeddings.position": "position",
    "embeddings.segment": "segment",
    "embeddings.process.norm": "norm",
    "heads.pooler": "pooler",
}


def encoder_table(library: str, layers: str, modules: Mapping[str, str], *, transposed: bool, **leaves: str) -> Table:
    """Return the table of an encoder. ``layers`` is the path of its layers, and ``modules`` maps those of one layer.

    ``transposed`` and ``leaves`` are further fields of ``Table``.
    """
    of_layers = {f"encoder.layers.N.{path}": f"{layers}.{{index}}.{stock}" for path, stock in modules.items()}
    return Table(library, {**_OUTSIDE_LAYERS, **of_layers}, transposed=transposed, **leaves)
