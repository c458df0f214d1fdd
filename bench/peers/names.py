"""Map the canonical names of a BERT's parameters to those of a stock encoder."""

from collections.abc import Sequence

from triglot.shared.model.config import ModelConfig

Pairs = Sequence[tuple[str, str]]


def encoder_names(
    config: ModelConfig,
    linear: Pairs,
    norms: Pairs,
    *,
    layer: str,
    leaves: tuple[str, str, str] = ("weight", "weight", "weight"),
) -> dict[str, str]:
    """Return the name in the encoder for each canonical name.

    ``linear`` and ``norms`` pair the paths within a layer, the canonical one first. Anything that they leave out is
    left out here too. ``layer`` is the path of the list of layers. ``leaves`` are the names of the weight of an
    embedding, of a linear layer and of a norm.
    """
    embedding, kernel, scale = leaves
    names = {
        f"embeddings.{name}.weight": f"{name}.{embedding}"
        for name in ("token", "position", *(["segment"] if config.segments else []))
    }
    all_norms = [("embeddings.process.norm", "norm")]
    all_linear = [("heads.pooler", "pooler")] if "pooler" in config.heads_on_top else []
    for number in range(config.layers):
        canonical, stock = f"encoder.layers.{number}", f"{layer}.{number}"
        all_norms += [(f"{canonical}.{path}", f"{stock}.{other}") for path, other in norms]
        all_linear += [(f"{canonical}.{path}", f"{stock}.{other}") for path, other in linear]
    for canonical, stock in all_norms:
        names |= {f"{canonical}.scale": f"{stock}.{scale}", f"{canonical}.bias": f"{stock}.bias"}
    for canonical, stock in all_linear:
        names |= {f"{canonical}.weight": f"{stock}.{kernel}", f"{canonical}.bias": f"{stock}.bias"}
    return names
