"""What the dialects share: rename and transpose tensors by a table, and compare them with the expected ones.

A table maps canonical names to the names of a dialect. Linear weights are (in, out) in a checkpoint; a dialect that is
``transposed`` stores them as (out, in). The schema says which weights are linear; a shape never does, because a square
weight has the same shape either way.
"""

from collections.abc import Callable, Mapping

import numpy as np

from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint
from triglot.shared.dtypes import FLOATS
from triglot.shared.errors import PortingError
from triglot.shared.model import schema
from triglot.shared.model.config import ModelConfig

_MOST_PROBLEMS = 6  # of each kind in one message


def to_canonical(
    config: ModelConfig, table: Mapping[str, str], tensors: Mapping[str, Array], *, transposed: bool = True
) -> dict[str, Array]:
    """Return copies of ``tensors`` under canonical names and in canonical layout."""
    return {
        name: _copy(tensors[table[name]], parameter, transposed=transposed)
        for name, parameter in schema.parameters(config).items()
    }


def from_canonical(checkpoint: Checkpoint, table: Mapping[str, str], *, transposed: bool = True) -> dict[str, Array]:
    """Return copies of the checkpoint's tensors under the dialect's names and in its layout."""
    return {
        table[name]: _copy(checkpoint.tensors[name], parameter, transposed=transposed)
        for name, parameter in schema.parameters(checkpoint.config).items()
    }


def shapes(config: ModelConfig, table: Mapping[str, str], *, transposed: bool = True) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in the dialect, by its name there."""
    return {
        table[name]: parameter.shape[::-1] if _is_transposed(parameter, transposed=transposed) else parameter.shape
        for name, parameter in schema.parameters(config).items()
    }


def check_layers(config: ModelConfig, tensor_count: int) -> None:
    """Refuse a configuration with more layers than tensors, before names are generated for all of them.

    Raises:
        PortingError: it has.
    """
    layers = max(config.layers, config.decoder_layers)
    if layers > tensor_count:
        raise PortingError(f"{tensor_count} tensors cannot be {layers} layers; pass the configuration of this model")


def check_tensors(
    tensors: Mapping[str, Array],
    required: Mapping[str, tuple[int, ...]],
    source_names: Mapping[str, str],
    advice: str,
    *,
    optional: Mapping[str, tuple[int, ...]] | None = None,
    hint: Callable[[str], str] = lambda name: "",
) -> None:
    """Compare ``tensors`` with the ``required`` and ``optional`` shapes: names in both directions, shapes, dtypes.

    ``source_names`` are the names in the file. ``hint`` explains an unexpected name, ``advice`` ends the message.

    Raises:
        PortingError: lists every difference, at most six of each kind.
    """
    accepted = {**required, **(optional or {})}
    missing = [f"missing {name}" for name in required if name not in tensors]
    unexpected = [f"unexpected {source_names[name]}{hint(name)}" for name in tensors if name not in accepted]
    present = [name for name in accepted if name in tensors]
    wrong = [
        f"{source_names[name]} has shape {tensors[name].shape}, expected {accepted[name]}"
        for name in present
        if tensors[name].shape != accepted[name]
    ]
    wrong += [
        f"{source_names[name]} has dtype {tensors[name].dtype}, expected one of {', '.join(FLOATS)}"
        for name in present
        if tensors[name].dtype not in FLOATS.values()
    ]
    if problems := [*_first(missing, "missing"), *_first(unexpected, "unexpected"), *_first(wrong, "wrong")]:
        raise PortingError(f"{'; '.join(problems)}; {advice}")


def inexpressible(dialect: str, losses: list[str]) -> PortingError:
    """Return the error for a model with fields that ``dialect`` cannot express."""
    return PortingError(
        f"the dialect {dialect} cannot express {', '.join(losses)}; write another dialect, or override these fields "
        "if the model computes the same without them (config=, or --set on the command line)"
    )


def _first(problems: list[str], kind: str) -> list[str]:
    others = len(problems) - _MOST_PROBLEMS
    return problems if others <= 0 else [*problems[:_MOST_PROBLEMS], f"{others} more {kind}"]


def _is_transposed(parameter: schema.Parameter, *, transposed: bool) -> bool:
    return transposed and parameter.role == "linear_weight"


def _copy(tensor: Array, parameter: schema.Parameter, *, transposed: bool) -> Array:
    return np.array(tensor.T if _is_transposed(parameter, transposed=transposed) else tensor, order="C")
