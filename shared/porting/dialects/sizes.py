"""The sizes of a model, read from the names and shapes of its tensors."""

from collections.abc import Mapping

from triglot.shared.model.schema import Role

from .table import Table

_FIRST_LAYERS = ("encoder.layers.0.", "")  # the second is attention alone
_SCORES = ("heads.logits.weight", "heads.log_probabilities.weight")
# Field of a configuration -> the parameters and the axis that show it. The first one that a file has counts.
_SHOWN_BY: dict[str, tuple[list[str], int]] = {
    "hidden_size": ([f"{layer}attention.query.weight" for layer in _FIRST_LAYERS], 0),
    "key_size": ([f"{layer}attention.query.weight" for layer in _FIRST_LAYERS], 1),  # of all heads together
    "value_size": ([f"{layer}attention.value.weight" for layer in _FIRST_LAYERS], 1),
    "feed_forward_size": (["encoder.layers.0.feed_forward.inner.weight"], 1),
    "source_vocabulary": (["embeddings.token.weight"], 0),
    "source_max_length": (["embeddings.position.weight"], 0),
    "target_vocabulary": (
        ["target_embeddings.token.weight", "heads.logits.weight", "heads.log_probabilities.weight"],
        1,
    ),
    "target_max_length": (["target_embeddings.position.weight"], 0),
    "segments": (["embeddings.segment.weight"], 0),
    "tasks": (["embeddings.task.weight"], 0),
}


def from_shapes(table: Table, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the fields of a configuration that the tensors of a file show.

    ``key_size`` and ``value_size`` are those of all heads together, because no shape says how many heads there are. A
    ``source_max_length`` includes the unused rows of the table of positions.
    """
    sizes = {"layers": table.layers("encoder", shapes), "decoder_layers": table.layers("decoder", shapes)}
    for field, (names, axis) in _SHOWN_BY.items():
        for name in names:
            shape = table.shape(name, _role(name), shapes)
            if shape is not None:
                sizes.setdefault(field, shape[0 if "embeddings" in name else axis])
    return {field: size for field, size in sizes.items() if size}


def _role(name: str) -> Role:
    return "embedding" if "embeddings." in name else "linear_weight"
