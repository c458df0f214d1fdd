"""The canonical names of a BERT's parameters beside those of a stock encoder."""

from collections.abc import Sequence

from triglot.shared.model.config import ModelConfig

Pairs = Sequence[tuple[str, str]]


def table(
    config: ModelConfig,
    linear: Pairs,
    norms: Pairs,
    *,
    layer: str,
    leaves: tuple[str, str, str] = ("weight", "weight", "weight"),
) -> dict[str, str]:
    """Canonical name -> name in the encoder, for everything but what ``linear`` and ``norms`` leave out.

    Both hold what a layer has: the path in ours and in theirs. ``layer``: what stands before the number of a layer.
    ``leaves``: how the weight of an embedding, of a linear layer and of a norm is called.
    """
    embedding, kernel, scale = leaves
    found = {
        f"embeddings.{name}.weight": f"{name}.{embedding}"
        for name in ("token", "position", *(["segment"] if config.segments else []))
    }
    all_norms = [("embeddings.process.norm", "norm")]
    all_linear = [("heads.pooler", "pooler")] if "pooler" in config.heads_on_top else []
    for number in range(config.layers):
        ours, theirs = f"encoder.layers.{number}", f"{layer}.{number}"
        all_norms += [(f"{ours}.{mine}", f"{theirs}.{other}") for mine, other in norms]
        all_linear += [(f"{ours}.{mine}", f"{theirs}.{other}") for mine, other in linear]
    for ours, theirs in all_norms:
        found |= {f"{ours}.scale": f"{theirs}.{scale}", f"{ours}.bias": f"{theirs}.bias"}
    for ours, theirs in all_linear:
        found |= {f"{ours}.weight": f"{theirs}.{kernel}", f"{ours}.bias": f"{theirs}.bias"}
    return found
