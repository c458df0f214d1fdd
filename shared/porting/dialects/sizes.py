"""The sizes of a model, read from the names and shapes of its tensors."""

from collections.abc import Mapping

from triglot.shared.errors import PortingError
from triglot.shared.model.schema import Role

from .table import Table

_QUERY, _VALUE = "attention.query.weight", "attention.value.weight"
_FIRST = "encoder.layers.0"
# Field of a configuration -> the parameters that show it, and on which axis. The first one that a file has counts.
_SHOWN_BY: dict[str, list[tuple[str, int]]] = {
    "hidden_size": [(f"{_FIRST}.{_QUERY}", 0), (_QUERY, 0)],
    "key_size": [(f"{_FIRST}.{_QUERY}", 1), (_QUERY, 1)],  # of all heads together
    "value_size": [(f"{_FIRST}.{_VALUE}", 1), (_VALUE, 1)],
    "feed_forward_size": [(f"{_FIRST}.feed_forward.inner.weight", 1)],
    "source_vocabulary": [("embeddings.token.weight", 0)],
    "source_max_length": [("embeddings.position.weight", 0)],
    "target_vocabulary": [
        ("target_embeddings.token.weight", 0),
        ("heads.logits.weight", 1),
        ("heads.log_probabilities.weight", 1),
    ],
    "target_max_length": [("target_embeddings.position.weight", 0)],
    "segments": [("embeddings.segment.weight", 0)],
    "tasks": [("embeddings.task.weight", 0)],
    "embedding_size": [("embeddings.token.weight", 1)],
    "classes": [("heads.sequence_classifier.weight", 1), ("heads.token_classifier.weight", 1)],
}


def from_shapes(table: Table, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the fields of a configuration that the tensors of a file show.

    ``key_size`` and ``value_size`` are those of all heads together, because no shape says how many heads there are. A
    ``source_max_length`` includes the unused rows of the table of positions.
    """
    sizes = {"layers": table.layers("encoder", shapes), "decoder_layers": table.layers("decoder", shapes)}
    for field, shown_by in _SHOWN_BY.items():
        for name, axis in shown_by:
            shape = table.shape(name, role_of(name), shapes)
            if shape is not None:
                sizes.setdefault(field, shape[axis])
    if sizes.get("embedding_size") == sizes.get("hidden_size"):
        sizes.pop("embedding_size", None)  # no projection
    return {field: size for field, size in sizes.items() if size}


def tensor_that_shows(table: Table, field: str) -> str:
    """Return the name of the tensor that shows a size in this dialect."""
    name, _ = _SHOWN_BY[field][0]
    return table.name(name, role_of(name))


def of_one_head(sizes: Mapping[str, int], heads: object) -> dict[str, int]:
    """Return the sizes with ``key_size`` and ``value_size`` of one head.

    Raises:
        PortingError: ``heads`` does not divide them.
    """
    divided = dict(sizes)
    for name in {"key_size", "value_size"} & sizes.keys():
        if type(heads) is not int or heads < 1 or sizes[name] % heads:
            raise PortingError(f"heads is {heads!r}; expected a divisor of {sizes[name]}, the size of all heads")
        divided[name] //= heads
    return divided


def role_of(name: str) -> Role:
    """Return the role of a parameter that is the scale of a norm, or a weight with two axes."""
    if name.endswith(".scale"):
        return "scale"
    return "embedding" if "embeddings." in name else "linear_weight"
